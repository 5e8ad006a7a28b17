// Checks of a single host: connection, clock, machine, limits, leftovers.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "common/base/quantity.h"
#include "launcher/check/evaluate.h"
#include "launcher/control/held_ranks.h"

namespace sortie::launcher::check {
namespace {

constexpr double kClockWarnMs = 1000, kClockFailMs = 60000;
constexpr std::uint64_t kMemoryPerSlot = 1u << 30;
/// Files that a rank's libraries open, including the runner's share per rank.
constexpr std::uint64_t kFilesPerRank = 64, kFilesAtLeast = 256;
constexpr std::uint64_t kMemlockForRdma = std::uint64_t{1} << 30;

/// The remedy for a connection error. The text is the same for all hosts, so that they fold.
const char* fix_for(ErrorCode code, bool over_transport) {
  if (over_transport && code != ErrorCode::runner)
    return "run the program of runner.transport by hand, with `true` as the command on the host";
  switch (code) {
    case ErrorCode::resolve:
      return "correct the name, or add it to DNS, /etc/hosts or ~/.ssh/config (HostName)";
    case ErrorCode::connect:
      return "see that the host is up and sshd listens: ssh -v HOST";
    case ErrorCode::handshake:
      return "see what answers on that port: ssh -v HOST";
    case ErrorCode::host_key:
      return "sign in once by hand (ssh HOST) and compare the key";
    case ErrorCode::auth:
      return "authorize the key (ssh-copy-id HOST), until `ssh HOST true` works without a prompt";
    case ErrorCode::channel:
      return "see MaxSessions and ForceCommand in the host's sshd_config";
    case ErrorCode::runner:
      return "see that the home folder is writable, has space and is not mounted noexec";
    case ErrorCode::timeout:
      return "see that the host is up (ssh HOST true), and look for a dead network file system or "
             "driver there; or raise --timeout";
    default:
      return "see whether `ssh HOST true` works";
  }
}

std::string stages_text(const HostResult& host, bool times) {
  std::string text;
  for (const Stage& stage : host.stages)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", stage.name,
                        times ? fmt::format(" {:.0f} ms", stage.ms) : "");
  return text;
}

}  // namespace

Finding judge_ssh(const HostResult& host, const Expectations& expect) {
  std::string passed = stages_text(host, !host.error);
  if (!host.through.empty()) passed += " (through an ssh master)";
  if (host.error) {
    std::string reason =
        fmt::format("{}: {}", error_code_name(host.error->code), host.error->message);
    if (!passed.empty()) reason += fmt::format(" (passed: {})", passed);
    return {"ssh", Verdict::fail, std::move(reason),
            fix_for(host.error->code, expect.over_transport)};
  }
  if (host.pushed) passed += " (the runner was pushed)";
  return {"ssh", Verdict::pass, std::move(passed), ""};
}

Finding judge_clock(const HostResult& host) {
  if (!host.report.clock_us) return {"clock", Verdict::none, "", ""};
  // The part of the difference that the round-trip time can not explain.
  const double off = std::max(0.0, std::abs(host.clock_offset_ms) - host.clock_error_ms);
  std::string text;
  if (off >= kClockWarnMs)
    text = fmt::format("{:.1f} s {} this machine's clock", std::abs(host.clock_offset_ms) / 1000,
                       host.clock_offset_ms > 0 ? "ahead of" : "behind");
  else
    text = fmt::format("within {:.0f} ms", std::abs(host.clock_offset_ms) + host.clock_error_ms);
  if (off < kClockWarnMs) return {"clock", Verdict::pass, std::move(text), ""};
  return {"clock", off >= kClockFailMs ? Verdict::fail : Verdict::warn, std::move(text),
          "run chrony or systemd-timesyncd on all hosts"};
}

Finding judge_cores(const HostResult& host) {
  if (!host.report.host) return {"cores", Verdict::none, "", ""};
  const std::uint64_t cpus = host.report.host->cpus, slots = host.slots.size();
  std::string text = fmt::format("{} cores for {} rank{}", cpus, slots, slots == 1 ? "" : "s");
  if (slots <= cpus) return {"cores", Verdict::pass, std::move(text), ""};
  return {"cores", Verdict::warn, std::move(text),
          "give the host fewer slots, or see what limits its CPU set (cgroup, taskset)"};
}

Finding judge_memory(const HostResult& host) {
  if (!host.report.host) return {"memory", Verdict::none, "", ""};
  const HostFacts& facts = *host.report.host;
  const std::uint64_t slots = std::max<std::uint64_t>(1, host.slots.size());
  if (facts.available_bytes / slots < kMemoryPerSlot)
    return {"memory", Verdict::warn,
            fmt::format("{} available of {} for {} rank{}", size_text(facts.available_bytes),
                        size_text(facts.memory_bytes), slots, slots == 1 ? "" : "s"),
            "end what else runs there, or give the host fewer slots"};
  return {"memory", Verdict::pass,
          fmt::format("{} available of {}", size_text(facts.available_bytes),
                      size_text(facts.memory_bytes)),
          ""};
}

Finding judge_memlock(const HostResult& host) {
  if (!host.report.host) return {"memlock", Verdict::none, "", ""};
  const HostFacts& facts = *host.report.host;
  const std::string text = facts.memlock ? size_text(*facts.memlock) : "unlimited";
  if (!facts.infiniband || !facts.memlock || *facts.memlock >= kMemlockForRdma)
    return {"memlock", Verdict::pass, text, ""};
  return {"memlock", Verdict::warn,
          fmt::format("{} on a host with InfiniBand: RDMA pins more than that", text),
          "`* - memlock unlimited` in /etc/security/limits.conf (sshd needs UsePAM yes)"};
}

Finding judge_open_files(const HostResult& host, const Expectations& expect) {
  if (!host.report.host) return {"open_files", Verdict::none, "", ""};
  const HostFacts& facts = *host.report.host;
  if (!facts.open_files) return {"open_files", Verdict::pass, "unlimited", ""};
  // A rank may have a connection to every other one.
  const std::uint64_t wanted = std::max(kFilesAtLeast, kFilesPerRank + expect.world_size);
  std::string text = fmt::format("{} a process", *facts.open_files);
  if (*facts.open_files >= wanted) return {"open_files", Verdict::pass, std::move(text), ""};
  const bool hopeless = *facts.open_files < expect.world_size || *facts.open_files < kFilesPerRank;
  return {"open_files", hopeless ? Verdict::fail : Verdict::warn,
          fmt::format("{}, a rank of {} may need {}", text, expect.world_size, wanted),
          "raise nofile in /etc/security/limits.conf (sshd needs UsePAM yes)"};
}

/// For information only: Sortie ends ranks as reliably without a cgroup.
Finding judge_cgroup(const HostResult& host) {
  if (!host.report.host) return {"cgroup", Verdict::none, "", ""};
  const HostFacts& facts = *host.report.host;
  if (!facts.cgroup_error.empty())
    return {"cgroup", Verdict::pass, "none: " + facts.cgroup_error, ""};
  return {"cgroup", Verdict::pass,
          facts.cgroup_writable
              ? "v2, writable"
              : "v2, not writable: OOM kills of ranks are reported as very likely, not as proven",
          ""};
}

namespace {

/// "run k3f9 has no launcher; its ranks are held here for at most 12 minutes more". Whole minutes,
/// so that hosts of one run are folded.
std::string held_text(const std::vector<HeldRun>& runs) {
  std::string text;
  for (const HeldRun& run : runs)
    text += fmt::format("{}run {} has no launcher; its ranks are held here for at most {} more",
                        text.empty() ? "" : "; ", run.run_id,
                        counted(run.seconds_left / 60 + 1, "minute"));
  return text;
}

}  // namespace

/// A runner makes this folder, by the same rules, before it starts ranks.
Finding judge_run_folder(const HostResult& host) {
  if (!host.report.host) return {"run_folder", Verdict::none, "", ""};
  const HostFacts& facts = *host.report.host;
  if (facts.run_error.empty()) return {"run_folder", Verdict::pass, facts.run_base, ""};
  return {"run_folder", Verdict::fail, "no rank can start: " + facts.run_error,
          "make that folder usable for this user on the host, or set XDG_RUNTIME_DIR there to a "
          "private folder of the user"};
}

Finding judge_leftovers(const HostResult& host) {
  if (!host.report.host) return {"leftovers", Verdict::none, "", ""};
  const HostFacts& facts = *host.report.host;
  const std::string gone =
      facts.runs_left + facts.cgroups_left == 0
          ? ""
          : fmt::format("{} and {} of runs that are gone", counted(facts.runs_left, "folder"),
                        counted(facts.cgroups_left, "cgroup"));
  if (!facts.without_launcher.empty())
    return {
        "leftovers", Verdict::warn,
        fmt::format("{}{}{}", held_text(facts.without_launcher), gone.empty() ? "" : "; ", gone),
        fmt::format("on the machine where it was started: {}",
                    help_for_held(facts.without_launcher.front().run_id))};
  if (!gone.empty())
    return {"leftovers", Verdict::warn, gone, "nothing: the next run there removes them"};
  if (!facts.run_error.empty()) return {"leftovers", Verdict::none, "", ""};  // not known
  return {"leftovers", Verdict::pass,
          facts.runs_alive > 0 ? fmt::format("none; {} run{} alive", facts.runs_alive,
                                             facts.runs_alive == 1 ? " is" : "s are")
                               : "none",
          ""};
}

/// The tunnel works for all hosts or for none; the reason names the pair that failed.
Finding judge_tunnel(const HostResult& host) {
  if (!host.tunnel_error.empty())
    return {"tunnel", Verdict::fail, host.tunnel_error,
            "see docs/launching.md, \"A tunnel between the hosts\""};
  if (host.tunnel.empty()) return {"tunnel", Verdict::none, "", ""};
  const std::string text =
      host.tunnel_rate.empty() ? host.tunnel : fmt::format("{}; {}", host.tunnel, host.tunnel_rate);
  return {"tunnel", Verdict::pass, text, ""};
}

}  // namespace sortie::launcher::check
