// Checks that compare hosts with each other, and hosts with their network.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/config/hostlist.h"
#include "launcher/check/compare.h"
#include "launcher/console/console.h"

namespace sortie::launcher::check {
namespace {

/// A round trip is slow if it exceeds the usual one by this factor and, because of noise, by at
/// least so many milliseconds.
constexpr double kSlowFactor = 10, kSlowAtLeastMs = 2;

/// "6.1.0-18-amd64" -> "6.1": patch levels differ on every cluster.
std::string series(const std::string& release) {
  const std::size_t first = release.find('.');
  return release.substr(0, release.find_first_not_of("0123456789", first + 1));
}

struct Peers {
  std::vector<std::string> unreachable, vanishing, smaller, slow;
  std::string why;
  std::uint64_t own_mtu = 0, path_mtu = 0;
  double best_ms = 0, worst_ms = 0;
  std::size_t reached = 0;
  bool filtered = false;  // datagrams are not answered
};

Peers sum_up(const HostResult& host, double usual_ms) {
  Peers sum;
  for (const std::string& name : host.asked_peers) {
    const auto found = std::ranges::find(host.report.peers, printable(name), &PeerFacts::name);
    if (found == host.report.peers.end() || !found->error.empty()) {
      sum.unreachable.push_back(name);
      if (sum.why.empty()) sum.why = found == host.report.peers.end() ? "no answer" : found->error;
      continue;
    }
    const double ms = static_cast<double>(found->round_trip_us) / 1000;
    sum.best_ms = sum.reached == 0 ? ms : std::min(sum.best_ms, ms);
    sum.worst_ms = std::max(sum.worst_ms, ms);
    ++sum.reached;
    if (ms > kSlowAtLeastMs && ms > kSlowFactor * usual_ms) sum.slow.push_back(name);
    sum.own_mtu = std::max(sum.own_mtu, found->own_mtu);
    if (found->mtu == 0) {
      sum.filtered = true;
    } else if (found->mtu < found->own_mtu) {
      (found->mtu_reported ? sum.smaller : sum.vanishing).push_back(name);
      sum.path_mtu = found->mtu;
    }
  }
  return sum;
}

double usual_round_trip(const std::vector<HostResult>& hosts) {
  std::vector<double> times;
  for (const HostResult& host : hosts)
    for (const PeerFacts& peer : host.report.peers)
      if (peer.error.empty()) times.push_back(static_cast<double>(peer.round_trip_us) / 1000);
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

}  // namespace

std::vector<Finding> judge_reached(const std::vector<HostResult>& hosts,
                                   const Expectations& expect) {
  std::vector<Finding> findings;
  std::map<std::string, std::string> first_name;  // by machine
  for (const HostResult& host : hosts) {
    Finding& finding = findings.emplace_back(judge_ssh(host, expect));
    if (!host.report.host || host.report.host->machine_id.empty()) continue;
    const auto [entry, is_new] = first_name.emplace(host.report.host->machine_id, host.host);
    if (!is_new && !expect.allow_same_machine && finding.verdict == Verdict::pass)
      finding = {"ssh", Verdict::fail,
                 fmt::format("another name of the machine of {}", entry->second),
                 "remove one of the two names, or set runner.allow_same_machine = true"};
  }
  return findings;
}

std::vector<Finding> judge_kernels(const std::vector<HostResult>& hosts) {
  std::vector<Finding> findings = blank(hosts, "kernel");
  const auto machine = [](const HostResult& host) {
    return host.report.host ? host.report.host->machine : std::string();
  };
  const auto release = [](const HostResult& host) {
    return host.report.host ? series(host.report.host->kernel) : std::string();
  };
  const Usual machines(hosts, machine, Usual::Among::all);
  const Usual releases(hosts, release, Usual::Among::all);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!hosts[i].report.host) continue;
    const HostFacts& facts = *hosts[i].report.host;
    std::string text = fmt::format("{} {}", facts.kernel, facts.machine);
    if (const std::string usual = machines.value(hosts[i]); facts.machine != usual)
      findings[i] = {"kernel", Verdict::fail, fmt::format("{}, most hosts are {}", text, usual),
                     "leave the host out: one program can not run on both"};
    else if (release(hosts[i]) != releases.value(hosts[i]))
      findings[i] = {"kernel", Verdict::warn,
                     fmt::format("{}, most hosts have {}", text, releases.value(hosts[i])),
                     "bring the hosts to one release"};
    else
      findings[i] = {"kernel", Verdict::pass, std::move(text), ""};
  }
  return findings;
}

namespace {

/// Whether the report says that the program needs no MPI. It does not if the program could not be
/// examined, or if its libmpi is missing.
bool is_without_mpi(const ProgramFacts& program) {
  return program.error.empty() && std::ranges::none_of(program.missing, [](const auto& library) {
           return library.starts_with("libmpi.so");
         });
}

}  // namespace

std::vector<Finding> judge_mpi(const std::vector<HostResult>& hosts, const Expectations& expect) {
  std::vector<Finding> findings = blank(hosts, "mpi");
  const auto pmix = [](const HostResult& host) {
    return host.report.mpi ? host.report.mpi->pmix : std::string();
  };
  const auto mpi = [](const HostResult& host) {
    return host.report.mpi ? host.report.mpi->mpi : std::string();
  };
  const Usual all_pmix(hosts, pmix, Usual::Among::all), all_mpi(hosts, mpi, Usual::Among::all);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!hosts[i].report.mpi) {
      if (expect.mpi == "off") findings[i] = {"mpi", Verdict::pass, "off", ""};
      // The runner does not load libmpi for a program that is not linked with it.
      else if (hosts[i].report.program && is_without_mpi(*hosts[i].report.program))
        findings[i] = {"mpi", Verdict::pass, "the program is not linked with libmpi", ""};
      continue;
    }
    const MpiFacts& facts = *hosts[i].report.mpi;
    const std::string usual_pmix = all_pmix.value(hosts[i]), usual_mpi = all_mpi.value(hosts[i]);
    const std::string& error = !facts.error.empty() ? facts.error : facts.pmix_error;
    std::string text = fmt::format("{}, PMIx {}", facts.mpi, facts.pmix);
    if (!error.empty())
      findings[i] = {"mpi", Verdict::fail, error,
                     "install libpmix2 (Debian, Ubuntu) or pmix (Fedora, Rocky) there"};
    else if (!facts.mpi_error.empty())
      findings[i] = {"mpi", expect.mpi == "on" ? Verdict::warn : Verdict::fail,
                     fmt::format("PMIx {}; libmpi: {}", facts.pmix, facts.mpi_error),
                     "install the MPI that the program was built with"};
    else if (facts.pmix != usual_pmix || facts.mpi != usual_mpi)
      findings[i] = {"mpi", Verdict::warn,
                     fmt::format("{}; most hosts have {}, PMIx {}", text, usual_mpi, usual_pmix),
                     "install the same versions on all hosts"};
    else
      findings[i] = {"mpi", Verdict::pass, std::move(text), ""};
  }
  return findings;
}

std::vector<Finding> judge_network(const std::vector<HostResult>& hosts) {
  std::vector<Finding> findings = blank(hosts, "network");
  const double usual = usual_round_trip(hosts);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostResult& host = hosts[i];
    if (!host.reached) continue;
    if (!host.report.listen_port && hosts.size() > 1 && !host.report.listen_error.empty()) {
      findings[i] = {
          "network", Verdict::fail, host.report.listen_error,
          "see what keeps programs there from listening, or correct runner.network.interface"};
      continue;
    }
    if (host.asked_peers.empty()) {
      if (hosts.size() == 1) findings[i] = {"network", Verdict::pass, "one host", ""};
      continue;
    }
    const Peers sum = sum_up(host, usual);
    const std::string times =
        fmt::format("round trip {:.2f} to {:.2f} ms", sum.best_ms, sum.worst_ms);
    if (!sum.unreachable.empty())
      findings[i] = {
          "network", Verdict::fail,
          fmt::format("no way to {}: {}", config::fold_host_names(sum.unreachable), sum.why),
          "see routes and firewalls between them: ranks talk to each other on any port"};
    else if (!sum.vanishing.empty())
      findings[i] = {"network", Verdict::fail,
                     fmt::format("packets over {} bytes vanish on the way to {} (MTU here: {})",
                                 sum.path_mtu, config::fold_host_names(sum.vanishing), sum.own_mtu),
                     "set one MTU on all interfaces and switches, and allow ICMP"};
    else if (!sum.smaller.empty())
      findings[i] = {"network", Verdict::warn,
                     fmt::format("packets over {} bytes do not get to {} (MTU here: {})",
                                 sum.path_mtu, config::fold_host_names(sum.smaller), sum.own_mtu),
                     "set one MTU on all interfaces and switches"};
    else if (!sum.slow.empty())
      findings[i] = {"network", Verdict::warn,
                     fmt::format("slow to {}: {}, {:.2f} ms is usual",
                                 config::fold_host_names(sum.slow), times, usual),
                     "see the cabling, the switch and what else uses the link"};
    else
      findings[i] = {
          "network", Verdict::pass,
          fmt::format(
              "{} host{}, {}, {}", sum.reached, sum.reached == 1 ? "" : "s", times,
              sum.filtered ? "MTU unknown: UDP is filtered" : fmt::format("MTU {}", sum.own_mtu)),
          ""};
  }
  return findings;
}

std::vector<Finding> judge_bandwidth(const std::vector<HostResult>& hosts) {
  std::vector<Finding> findings = blank(hosts, "bandwidth");
  const auto gbit = [](const BandwidthFacts& facts) {
    return facts.us == 0 ? 0.0
                         : static_cast<double>(facts.bytes) * 8e-3 / static_cast<double>(facts.us);
  };
  std::vector<double> rates;
  for (const HostResult& host : hosts)
    if (host.report.bandwidth && host.report.bandwidth->error.empty())
      rates.push_back(gbit(*host.report.bandwidth));
  std::ranges::sort(rates);
  const double usual = rates.empty() ? 0 : rates[rates.size() / 2];
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i].asked_bandwidth.empty()) continue;
    const std::string& peer = hosts[i].asked_bandwidth;
    const auto& facts = hosts[i].report.bandwidth;
    if (!facts || !facts->error.empty()) {
      findings[i] = {"bandwidth", Verdict::fail,
                     fmt::format("to {}: {}", peer, facts ? facts->error : "no answer"),
                     "see what the network column says"};
      continue;
    }
    const double rate = gbit(*facts);
    std::string text = fmt::format("{:.2f} Gbit/s to {}", rate, peer);
    findings[i] = rate * 2 < usual ? Finding{"bandwidth", Verdict::warn,
                                             fmt::format("{}, {:.2f} is usual", text, usual),
                                             "see the link's speed (ethtool) and what else uses it"}
                                   : Finding{"bandwidth", Verdict::pass, std::move(text), ""};
  }
  return findings;
}

}  // namespace sortie::launcher::check
