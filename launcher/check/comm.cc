#include "launcher/check/comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/printable.h"

namespace sortie::launcher::check {
namespace {

using Json = nlohmann::json;
using Pair = std::pair<std::string, std::string>;
using Slow = std::map<Pair, double>;  // Gbit/s of links below the floor

constexpr std::size_t kMaxName = 253;
constexpr std::size_t kMaxListed = 8;

constexpr const char* kHostFix =
    "see the speed and errors of its interface (ethtool, ip -s link), the cable, and what else "
    "uses "
    "it; --exclude runs without it";
constexpr const char* kLinkFix = "see the way between the two: switch ports, routes, MTU";

std::string name_of(const Json& value) {
  return printable(value.get_ref<const std::string&>().substr(0, kMaxName));
}

/// Parses a list of links between different hosts; several links of one pair become their mean.
bool read_links(const Json& rows, std::vector<CommLink>& links) {
  if (!rows.is_array()) return false;
  std::map<Pair, std::size_t> places;
  std::vector<double> counts;
  for (const Json& row : rows) {
    if (!row.is_object() || !row.contains("from") || !row["from"].is_string() ||
        !row.contains("to") || !row["to"].is_string() || !row.contains("gbit_s") ||
        !row["gbit_s"].is_number())
      return false;
    CommLink link{name_of(row["from"]), name_of(row["to"]), row["gbit_s"].get<double>(), 0};
    if (row.contains("latency_us") && row["latency_us"].is_number())
      link.latency_us = row["latency_us"].get<double>();
    if (!std::isfinite(link.gbit_s) || link.gbit_s <= 0 || !std::isfinite(link.latency_us))
      return false;
    if (link.from == link.to) continue;
    const auto [place, is_new] = places.try_emplace({link.from, link.to}, links.size());
    if (is_new) {
      links.push_back(link);
      counts.push_back(1);
      continue;
    }
    CommLink& known = links[place->second];
    const double count = ++counts[place->second];
    known.gbit_s += (link.gbit_s - known.gbit_s) / count;
    known.latency_us += (link.latency_us - known.latency_us) / count;
  }
  return true;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// "0.048 Gbit/s" or "0.048 to 0.051 Gbit/s".
std::string rates(const Slow& links) {
  double least = links.begin()->second, most = least;
  for (const auto& [pair, rate] : links) {
    least = std::min(least, rate);
    most = std::max(most, rate);
  }
  const std::string low = fmt::format("{:.3g}", least), high = fmt::format("{:.3g}", most);
  return low == high ? low + " Gbit/s" : fmt::format("{} to {} Gbit/s", low, high);
}

std::string floor_text(const CommJudgement& judgement) {
  if (judgement.floor_was_set) return fmt::format("below {:.3g} Gbit/s", judgement.floor_gbit_s);
  return fmt::format("below {:.3g} Gbit/s, {} of the median here", judgement.floor_gbit_s,
                     kUsualShare);
}

/// "h01 - h02, h01 - h04 and 3 more".
std::string listed(const Slow& links, std::string_view between) {
  std::vector<std::string> names;
  for (const auto& [pair, rate] : links)
    if (names.size() < kMaxListed)
      names.push_back(fmt::format("{} {} {}", pair.first, between, pair.second));
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (links.size() > names.size()) text += fmt::format(" and {} more", links.size() - names.size());
  return text;
}

bool touches(const Pair& pair, const std::set<std::string>& hosts) {
  return hosts.contains(pair.first) || hosts.contains(pair.second);
}

/// Hosts that explain slow links. Repeatedly picks the host with the most slow links, as long as
/// these are more than half of its links to hosts not picked yet.
std::set<std::string> slow_hosts(const std::vector<CommLink>& pairs, const Slow& slow) {
  std::set<std::string> named;
  for (;;) {
    std::map<std::string, std::pair<std::size_t, std::size_t>> counts;  // slow links, all links
    for (const CommLink& link : pairs) {
      if (touches({link.from, link.to}, named)) continue;
      const std::size_t is_slow = slow.contains({link.from, link.to}) ? 1 : 0;
      for (const std::string& host : {link.from, link.to}) {
        counts[host].first += is_slow;
        ++counts[host].second;
      }
    }
    const auto most =
        std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second.first; });
    if (most == counts.end()) return named;
    const auto [found, all] = most->second;
    if (all < 2 || 2 * found <= all) return named;
    named.insert(most->first);
  }
}

void judge_pairs(const CommReport& report, const Slow& slow, std::set<std::string>& named,
                 CommJudgement& judgement) {
  const std::string below = floor_text(judgement);
  if (slow.size() == report.pairs.size() && slow.size() > 1) {
    named.insert(report.hosts.begin(), report.hosts.end());
    judgement.slow.push_back({report.hosts, fmt::format("all links: {}, {}", rates(slow), below),
                              "see the network that the hosts share, and the floor"});
    return;
  }
  named = slow_hosts(report.pairs, slow);
  Slow of_hosts, others;
  for (const auto& [pair, rate] : slow) (touches(pair, named) ? of_hosts : others)[pair] = rate;
  if (!named.empty())
    judgement.slow.push_back({{named.begin(), named.end()},
                              fmt::format("links at {}, {}", rates(of_hosts), below),
                              kHostFix});
  std::set<std::string> ends;
  for (const auto& [pair, rate] : others) ends.insert({pair.first, pair.second});
  if (!others.empty())
    judgement.slow.push_back({{ends.begin(), ends.end()},
                              fmt::format("{}: {}, {}", listed(others, "-"), rates(others), below),
                              kLinkFix});
}

/// Links that are slow only in the ring: those not explained by slow pairs or named hosts.
void judge_ring(const CommReport& report, const Slow& slow_pairs,
                const std::set<std::string>& named, CommJudgement& judgement) {
  Slow slow;
  for (const CommLink& link : report.ring)
    if (link.gbit_s < judgement.floor_gbit_s && !touches({link.from, link.to}, named) &&
        !slow_pairs.contains({link.from, link.to}) && !slow_pairs.contains({link.to, link.from}))
      slow[{link.from, link.to}] = link.gbit_s;
  if (slow.empty()) return;
  std::set<std::string> ends;
  for (const auto& [pair, rate] : slow) ends.insert({pair.first, pair.second});
  judgement.slow.push_back(
      {{ends.begin(), ends.end()},
       fmt::format("in a ring of all hosts {}: {}, {}", listed(slow, "->"), rates(slow),
                   floor_text(judgement)),
       "see what these links share when all are used at once: switches, uplinks"});
}

}  // namespace

Result<CommReport> parse_comm_report(std::string_view text) {
  const auto bad = [](std::string_view why) {
    return fail(ErrorCode::protocol,
                fmt::format("the output of rank 0 is not a report of bench comm: {}; "
                            "install sortie and sortie-train from one build",
                            why));
  };
  const Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || parsed.value("schema", Json()) != "sortie/bench-comm/1")
    return bad("no JSON of schema sortie/bench-comm/1");
  const Json links = parsed.value("links", Json());
  const Json hosts = parsed.value("hosts", Json());
  if (!links.is_object() || !hosts.is_array()) return bad("no links");
  CommReport report;
  report.ranks = hosts.size();
  for (const Json& host : hosts) {
    if (!host.is_string()) return bad("a host without a name");
    std::string name = name_of(host);
    if (std::ranges::find(report.hosts, name) == report.hosts.end())
      report.hosts.push_back(std::move(name));
  }
  if (const Json library = parsed.value("library", Json()); library.is_string())
    report.library = name_of(library);
  if (!read_links(links.value("pairs", Json()), report.pairs) ||
      !read_links(links.value("ring", Json()), report.ring))
    return bad("a link without names or rate");
  if (report.pairs.empty()) return bad("no links between hosts");
  return report;
}

Result<double> parse_bit_rate(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.ends_with("/s")) unit.remove_suffix(2);
  static const std::map<std::string_view, double> kUnits = {
      {"bit", 1e-9}, {"kbit", 1e-6}, {"Mbit", 1e-3}, {"Gbit", 1}, {"Tbit", 1e3}};
  const auto found = kUnits.find(unit);
  if (error != std::errc() || found == kUnits.end() || !std::isfinite(value) || value <= 0)
    return fail(
        ErrorCode::usage,
        fmt::format("'{}' is no rate; write a number and a unit: 900Mbit/s, 10Gbit/s", text));
  return value * found->second;
}

CommJudgement judge_comm(const CommReport& report, std::optional<double> floor_gbit_s) {
  CommJudgement judgement;
  std::map<std::string, double> fastest;
  for (const CommLink& link : report.pairs)
    for (const std::string& host : {link.from, link.to})
      fastest[host] = std::max(fastest[host], link.gbit_s);
  std::vector<double> of_hosts;
  for (const auto& [host, rate] : fastest) of_hosts.push_back(rate);
  // One slow host of three makes two of three links slow, so the median over links would be its own
  // rate.
  judgement.usual_gbit_s = median(std::move(of_hosts));
  judgement.floor_was_set = floor_gbit_s.has_value();
  if (!floor_gbit_s && fastest.size() < 3) return judgement;
  judgement.floor_gbit_s = floor_gbit_s.value_or(kUsualShare * judgement.usual_gbit_s);
  Slow slow;
  for (const CommLink& link : report.pairs)
    if (link.gbit_s < judgement.floor_gbit_s) slow[{link.from, link.to}] = link.gbit_s;
  std::set<std::string> named;
  if (!slow.empty()) judge_pairs(report, slow, named, judgement);
  judge_ring(report, slow, named, judgement);
  return judgement;
}

}  // namespace sortie::launcher::check
