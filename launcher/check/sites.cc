#include "launcher/check/sites.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/console/console.h"

namespace sortie::launcher::check {
namespace {

const LinkFacts* link_of(const HostResult& host, const std::string& to) {
  const auto found = std::ranges::find(host.report.links, printable(to), &LinkFacts::name);
  return found == host.report.links.end() ? nullptr : &*found;
}

bool has_rates(const LinkFacts* link) {
  return link != nullptr && link->error.empty() && link->rate_error.empty() && link->out.us > 0 &&
         link->back.us > 0;
}

void take_way(const WayFacts& way, SiteLink& link) {
  constexpr double kMostByteS = 1.25e14;  // faster than any link: bounds what a host may claim
  link.works = way.us > 0 && way.bytes > 0;
  if (!link.works) return;
  link.byte_s =
      std::min(static_cast<double>(way.bytes) * 1e6 / static_cast<double>(way.us), kMostByteS);
  if (way.segments > 0)
    link.loss = std::min(1.0, static_cast<double>(way.again) / static_cast<double>(way.segments));
}

SiteLink one_way(const HostResult& from, const HostResult& to, double now) {
  SiteLink link{.from = from.site,
                .to = to.site,
                .from_host = from.host,
                .to_host = to.host,
                .error = "",
                .port = static_cast<std::int64_t>(std::min<std::uint64_t>(to.site_port, 65535)),
                .time = now};
  const LinkFacts* there = link_of(from, to.host);
  const LinkFacts* back = link_of(to, from.host);
  link.reached = there != nullptr && there->error.empty();
  if (has_rates(there))
    take_way(there->out, link);
  else if (has_rates(back))
    take_way(back->back, link);
  const LinkFacts* best = link.reached ? there : back;
  if (best != nullptr && best->error.empty()) {
    link.round_trip = std::min(static_cast<double>(best->round_trip_us) / 1e6, 1000.0);
    link.mtu = std::min<std::uint64_t>(best->mtu, 65536);
    link.mtu_vanishes = best->mtu > 0 && best->mtu < best->own_mtu && !best->mtu_reported;
  }
  if (there == nullptr)
    link.error = from.error              ? from.error->message
                 : to.site_error.empty() ? "no answer"
                                         : to.site_error;
  else
    link.error = there->error.empty() ? there->rate_error : there->error;
  return link;
}

bool was_asked(const HostResult& from, const HostResult& to) {
  return std::ranges::find(from.asked_links, to.host) != from.asked_links.end();
}

const SiteLink* find_way(const std::vector<SiteLink>& links, const std::string& from,
                         const std::string& to) {
  const auto found = std::ranges::find_if(
      links, [&](const SiteLink& link) { return link.from == from && link.to == to; });
  return found == links.end() ? nullptr : &*found;
}

std::string mbit_text(double byte_s) {
  const double mbit = byte_s * 8e-6;
  return mbit >= 1000.0 ? fmt::format("{:.2f} Gbit/s", mbit / 1000.0)
                        : fmt::format("{:.3g} Mbit/s", mbit);
}

std::string end_text(const std::string& site, const std::string& host) {
  return fmt::format("{} ({})", site, host);
}

/// The command, for an administrator, that opens the port for the leaders of other sites.
std::string opening(const SiteExpectations& expect) {
  if (expect.port == 0)
    return "set outer.port to a port that one of the two accepts, as `ufw allow 51821/tcp` there "
           "does for 51821";
  return fmt::format("open TCP port {} on one of the two: as root there, `ufw allow {}/tcp`",
                     expect.port, expect.port);
}

/// Judges the pair in one order of its sites, so that both hosts report the same.
Finding judge_pair(const SiteLink& link, const SiteLink& back, const SiteExpectations& expect) {
  const std::string pair = fmt::format("{} and {}", end_text(link.from, link.from_host),
                                       end_text(link.to, link.to_host));
  if (!link.reached && !back.reached) {
    const std::string why = link.error == back.error
                                ? fmt::format("both ways {}", link.error)
                                : fmt::format("{}, and back: {}", link.error, back.error);
    return {"sites", Verdict::fail, fmt::format("{} do not reach each other: {}", pair, why),
            opening(expect) +
                "; then run `sortie check` again; or set outer.route = \"launcher\", and all that "
                "the sites send each other goes through this machine"};
  }
  const SiteLink& open = link.reached ? link : back;
  if (open.mtu_vanishes)
    return {"sites", Verdict::fail,
            fmt::format("between {} packets over {} bytes vanish", pair, open.mtu),
            fmt::format("allow ICMP, or lower the MTU of both hosts' interfaces: as root, "
                        "`ip link set dev NAME mtu {}`",
                        open.mtu)};
  if (!link.works || !back.works)
    return {"sites", Verdict::fail,
            fmt::format("between {} a connection opens and no bytes come through: {}", pair,
                        open.error),
            "see what limits long connections on the way (firewalls, proxies); `iperf3` between "
            "the two shows the same"};
  return {"sites", Verdict::pass,
          fmt::format("{}: {} there, {} back, round trip {:.3g} ms{}", pair, mbit_text(link.byte_s),
                      mbit_text(back.byte_s), open.round_trip * 1e3,
                      link.reached && back.reached
                          ? ""
                          : fmt::format(", opened by {}", link.reached ? link.from : link.to)),
          ""};
}

}  // namespace

std::vector<SiteLink> site_links(const std::vector<HostResult>& hosts, double now) {
  std::vector<SiteLink> links;
  for (const HostResult& from : hosts)
    for (const HostResult& to : hosts)
      if (was_asked(from, to) || was_asked(to, from)) links.push_back(one_way(from, to, now));
  return links;
}

std::vector<Finding> judge_sites(const std::vector<HostResult>& hosts, const Expectations& expect) {
  std::vector<Finding> findings(hosts.size(), Finding{"sites", Verdict::none, "", ""});
  if (!expect.sites) return findings;
  const std::vector<SiteLink> links = site_links(hosts, 0.0);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostResult& host = hosts[i];
    Finding& finding = findings[i];
    if (!host.site_error.empty()) {
      finding = {"sites", Verdict::fail,
                 fmt::format("TCP port {} (outer.port): {}", host.site_port, host.site_error),
                 "choose another outer.port, or end what listens there: `ss -ltnp` shows who does"};
      continue;
    }
    for (const SiteLink& link : links) {
      if (link.from_host != host.host) continue;
      const SiteLink* back = find_way(links, link.to, link.from);
      if (back == nullptr) continue;
      Finding pair = link.from < link.to ? judge_pair(link, *back, *expect.sites)
                                         : judge_pair(*back, link, *expect.sites);
      if (finding.verdict == pair.verdict) {
        finding.reason += "; " + pair.reason;
        if (finding.fix != pair.fix) finding.fix += "; " + pair.fix;
      } else if (pair.verdict > finding.verdict) {
        finding = std::move(pair);
      }
    }
  }
  return findings;
}

std::string site_links_text(const std::vector<SiteLink>& links) {
  if (links.empty()) return "";
  std::string text = "between sites:\n";
  for (const SiteLink& link : links) {
    const std::string ends = fmt::format("  {} -> {}", end_text(link.from, link.from_host),
                                         end_text(link.to, link.to_host));
    if (!link.works) {
      text += fmt::format("{}: {}\n", ends, link.error);
      continue;
    }
    text += fmt::format("{}: {}, round trip {:.3g} ms, {:.2g} % sent again", ends,
                        mbit_text(link.byte_s), link.round_trip * 1e3, link.loss * 100.0);
    if (link.mtu > 0) text += fmt::format(", MTU {}", link.mtu);
    text += link.reached ? "\n" : fmt::format(", opened by {}\n", link.to);
  }
  return text + "  `sortie plan` shows what training sends over them, and how long it waits\n";
}

nlohmann::ordered_json site_links_json(const std::vector<SiteLink>& links) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const SiteLink& link : links) out.push_back(site_link_json(link));
  return out;
}

}  // namespace sortie::launcher::check
