// Checks that compare hosts with each other, and hosts with their network.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "common/config/hostlist.h"
#include "launcher/check/evaluate.h"
#include "launcher/console/console.h"

namespace sortie::launcher::check {
namespace {

/// A round trip is slow if it exceeds the usual one by this factor and, because of noise, by at
/// least so many milliseconds.
constexpr double kSlowFactor = 10, kSlowAtLeastMs = 2;

/// Returns the most common value; among equally common ones the alphabetically first. "" if no host
/// has a value.
template <class Get>
std::string most_common(const std::vector<HostResult>& hosts, Get get) {
  std::map<std::string, std::size_t> votes;
  for (const HostResult& host : hosts)
    if (const std::string value = get(host); !value.empty()) ++votes[value];
  const auto most =
      std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
  return most == votes.end() ? "" : most->first;
}

std::vector<Finding> blank(const std::vector<HostResult>& hosts, const char* check) {
  return std::vector<Finding>(hosts.size(), Finding{check, Verdict::none, "", ""});
}

/// "6.1.0-18-amd64" -> "6.1": patch levels differ on every cluster.
std::string series(const std::string& release) {
  const std::size_t first = release.find('.');
  return release.substr(0, release.find_first_not_of("0123456789", first + 1));
}

std::size_t gpu_count(const GpuFacts& facts) {
  if (!facts.smi.empty() && facts.smi_error.empty()) return facts.names.size();
  return std::max({facts.driver, facts.devices, facts.rocm});
}

std::string gpu_names(const GpuFacts& facts) {
  if (facts.names.empty()) return "";
  const bool same = std::ranges::count(facts.names, facts.names.front()) ==
                    static_cast<std::ptrdiff_t>(facts.names.size());
  return same ? facts.names.front() : "of several kinds";
}

/// The oldest NVIDIA driver that supports the CUDA version of Sortie's GPU code.
constexpr std::uint64_t kLeastDriver = 580;

std::uint64_t series_of(const std::string& driver) {
  std::uint64_t series = 0;
  std::from_chars(driver.data(), driver.data() + driver.size(), series);
  return series;
}

/// Warns about drivers that differ or are too old.
void judge_drivers(const std::vector<HostResult>& hosts, std::vector<Finding>& findings) {
  const std::string usual = most_common(hosts, [](const HostResult& host) {
    return host.report.gpus ? host.report.gpus->driver_version : std::string();
  });
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!hosts[i].report.gpus || findings[i].verdict == Verdict::fail) continue;
    const std::string& own = hosts[i].report.gpus->driver_version;
    if (own.empty()) continue;
    findings[i].reason += ", driver " + own;
    if (own == usual && series_of(own) >= kLeastDriver) continue;
    findings[i].verdict = Verdict::warn;
    if (series_of(own) < kLeastDriver) {
      findings[i].reason += fmt::format(": the trainer on GPUs needs {} or newer", kLeastDriver);
      findings[i].fix = "install a newer NVIDIA driver there";
    } else {
      findings[i].reason += fmt::format(", and other hosts have {}", usual);
      findings[i].fix = "install one NVIDIA driver on all hosts";
    }
  }
}

Finding judge_gpus_of(const HostResult& host, const Expectations& expect, bool others_have) {
  const GpuFacts& facts = *host.report.gpus;
  const char* const fix = "see nvidia-smi and dmesg there, and that its user may open /dev/nvidia*";
  if (!facts.smi_error.empty())
    return {"gpus", Verdict::fail, fmt::format("{}: {}", facts.smi, facts.smi_error), fix};
  const std::size_t count = gpu_count(facts);
  if (count == 0 && expect.gpus)
    return {"gpus", Verdict::fail, "none, and trainer.device = \"cuda\" needs one for each rank",
            "use hosts with NVIDIA GPUs, or set trainer.device = \"cpu\""};
  if (count == 0 && facts.smi.empty() && !others_have)
    return {"gpus", Verdict::pass, "none: slots are shares of the cores", ""};
  if (count == 0)
    return {"gpus", Verdict::warn,
            others_have ? "none, and other hosts have some" : "none, but nvidia-smi is installed",
            fix};
  if (!facts.smi.empty() && facts.driver > count)
    return {"gpus", Verdict::fail,
            fmt::format("nvidia-smi lists {} of the {} that the driver has", count, facts.driver),
            fix};
  const int last = host.slots.empty() ? 0 : std::ranges::max(host.slots);
  const std::string names = gpu_names(facts);
  std::string text = fmt::format("{}{}{}", count, names.empty() ? "" : " x ", names);
  if (static_cast<std::size_t>(last) >= count)
    return {"gpus", expect.gpus ? Verdict::fail : Verdict::warn,
            fmt::format("{}, but slot {} is used", text, last),
            fmt::format("slots={} or a list of ids below {}: its rank would find no GPU", count,
                        count)};
  return {"gpus", Verdict::pass, std::move(text), ""};
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
  const std::string usual = most_common(hosts, machine),
                    usual_release = most_common(hosts, release);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!hosts[i].report.host) continue;
    const HostFacts& facts = *hosts[i].report.host;
    std::string text = fmt::format("{} {}", facts.kernel, facts.machine);
    if (facts.machine != usual)
      findings[i] = {"kernel", Verdict::fail, fmt::format("{}, most hosts are {}", text, usual),
                     "leave the host out: one program can not run on both"};
    else if (release(hosts[i]) != usual_release)
      findings[i] = {"kernel", Verdict::warn,
                     fmt::format("{}, most hosts have {}", text, usual_release),
                     "bring the hosts to one release"};
    else
      findings[i] = {"kernel", Verdict::pass, std::move(text), ""};
  }
  return findings;
}

std::vector<Finding> judge_gpus(const std::vector<HostResult>& hosts, const Expectations& expect) {
  std::vector<Finding> findings = blank(hosts, "gpus");
  const bool any = std::ranges::any_of(hosts, [](const HostResult& host) {
    return host.report.gpus && gpu_count(*host.report.gpus) > 0;
  });
  for (std::size_t i = 0; i < hosts.size(); ++i)
    if (hosts[i].report.gpus) findings[i] = judge_gpus_of(hosts[i], expect, any);
  judge_drivers(hosts, findings);
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
  const std::string usual_pmix = most_common(hosts, pmix), usual_mpi = most_common(hosts, mpi);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!hosts[i].report.mpi) {
      if (expect.mpi == "off") findings[i] = {"mpi", Verdict::pass, "off", ""};
      // The runner does not load libmpi for a program that is not linked with it.
      else if (hosts[i].report.program && is_without_mpi(*hosts[i].report.program))
        findings[i] = {"mpi", Verdict::pass, "the program is not linked with libmpi", ""};
      continue;
    }
    const MpiFacts& facts = *hosts[i].report.mpi;
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
