#include "launcher/chaos/chaos_command.h"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/cli/print.h"
#include "common/config/text.h"
#include "launcher/chaos/fault.h"
#include "launcher/console/console.h"
#include "launcher/control/control_client.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/exec/exec_command.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/sites/site_plan.h"
#include "launcher/view/run_view.h"

namespace sortie::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kChaosLookMs = 100;
constexpr std::chrono::hours kLongestCut{1};
/// Bounds the command on a host that was lost in the meantime, so that the next fault is not
/// delayed.
constexpr const char* kFaultTimeout = "20s";

struct Target {
  RunRecord record;
  std::vector<Victim> running;
};

/// Adds the running ranks to `running`. `folder`: the folder of the run or of one of its sites.
Result<> add_running(const std::filesystem::path& folder, const std::string& site,
                     const std::string& run, std::vector<Victim>& running) {
  SORTIE_ASSIGN_OR_RETURN(const RunRecord record, read_run(folder));
  const RunView view = read_journal(folder);
  for (const RunRecord::Host& host : record.hosts)
    for (const std::uint32_t rank : host.ranks) {
      const auto known = view.rank.find(rank);
      if (known != view.rank.end() && known->second.state == "running" && known->second.pid > 0)
        running.push_back({rank, host.name, known->second.pid, site, run});
    }
  return {};
}

Result<Target> look_at(const std::filesystem::path& folder) {
  SORTIE_ASSIGN_OR_RETURN(RunRecord record, read_run(folder));
  std::vector<Victim> running;
  if (record.sites.empty()) SORTIE_TRY(add_running(folder, "", record.id, running));
  std::int64_t index = 0;
  for (const std::string& site : record.sites)
    // A site that was just added may have no plan yet.
    if (auto added = add_running(site_folder(folder, site), site,
                                 run_id_of_site(record.id, index++), running);
        !added && added.error().code != ErrorCode::not_found && added.error().code != ErrorCode::io)
      return std::unexpected(std::move(added.error()));
  return Target{std::move(record), std::move(running)};
}

/// Asks for confirmation on the terminal. ErrorCode::usage if stdin is no terminal.
Result<bool> confirmed(const RunRecord& record, const ChaosOptions& options) {
  if (options.yes) return true;
  if (::isatty(STDIN_FILENO) != 1)
    return fail(ErrorCode::usage,
                "sortie: chaos asks for confirmation, and there is no terminal; use --yes");
  print_stderr("{} ({}): {} every {}, until it ends. Continue? [y/N] ", record.id,
               printable(record.name), options.faults, options.every);
  std::fflush(stderr);
  std::string answer;
  return std::getline(std::cin, answer) && (answer == "y" || answer == "yes");
}

/// Calls `act` with the supervisor, which must run on this machine. A supervisor that is gone (its
/// watcher replaces it) is no error: the fault has had its effect.
Result<> to_supervisor(const Target& target,
                       const std::function<Result<>(const SupervisorFacts&)>& act) {
  const SupervisorFacts& boss = target.record.supervisor;
  if (boss.machine != machine_name())
    return fail(ErrorCode::unsupported,
                fmt::format("its supervisor is on {}; use sortie there", boss.machine));
  auto done = boss.alive ? act(boss) : fail(ErrorCode::lost, "its supervisor is gone");
  if (done || done.error().code != ErrorCode::lost) return done;
  fmt::print("  {}\n", printable(done.error().message));
  return {};
}

Result<> make_fault(const Fault& fault, const Target& target, milliseconds link_down) {
  if (!fault.victim)
    return to_supervisor(target, [](const SupervisorFacts& boss) -> Result<> {
      if (boss.pid <= 0 || ::kill(boss.pid, SIGKILL) != 0)
        return fail(ErrorCode::lost, "its supervisor is gone");
      return {};
    });
  if (fault.kind == FaultKind::link)
    return to_supervisor(target, [&](const SupervisorFacts& boss) -> Result<> {
      SORTIE_ASSIGN_OR_RETURN(auto client, ControlClient::connect(target.record.path, boss.epoch));
      const nlohmann::json order = {
          {"op", "cut"}, {"host", fault.victim->host}, {"ms", link_down.count()}};
      SORTIE_TRY(client.ask(order));
      return {};
    });
  ExecOptions exec;
  exec.job.config = (target.record.path / "config.toml").string();
  exec.job.hosts = fault.victim->host;
  exec.job.program = fault_command(fault);
  exec.no_prefix = true;
  exec.timeout = kFaultTimeout;
  // exec_command() prints its errors; the run may just have lost that host.
  exec_command(exec);
  return {};
}

/// Waits until `until`. Returns false if the run ended before.
Result<bool> waited(const std::filesystem::path& folder, Clock::time_point until) {
  while (Clock::now() < until) {
    SORTIE_ASSIGN_OR_RETURN(const RunRecord record, read_run(folder));
    if (!record.alive()) return false;
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    ::poll(nullptr, 0, static_cast<int>(std::clamp<std::int64_t>(left.count(), 1, kChaosLookMs)));
  }
  return true;
}

Result<std::string> chaos(const ChaosOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(const auto kinds, parse_faults(options.faults));
  const auto every = config::parse_duration(options.every);
  if (!every || every->count() <= 0)
    return fail(ErrorCode::usage, fmt::format("sortie: --every {}: a time above 0, like 60s",
                                              config::shorten(options.every)));
  const auto link_down = config::parse_duration(options.link_down);
  if (!link_down || link_down->count() <= 0 || *link_down > kLongestCut)
    return fail(ErrorCode::usage, fmt::format("sortie: --link-down {}: a time from 1ms to 1h",
                                              config::shorten(options.link_down)));
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(options.log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto folder, index.find(options.run));
  SORTIE_ASSIGN_OR_RETURN(const Target first, look_at(folder));
  if (!first.record.alive())
    return fail(ErrorCode::usage, fmt::format("sortie: {}: does not run", first.record.id));
  SORTIE_ASSIGN_OR_RETURN(const bool agreed, confirmed(first.record, options));
  if (!agreed) return std::string("nothing was done\n");
  const std::uint64_t seed = options.seed.value_or(std::random_device()());
  fmt::print("chaos in {}: {} every {}, --seed {}\n", first.record.id, options.faults,
             options.every, seed);
  FaultSource source(seed, kinds);
  std::int64_t made = 0;
  for (auto next = Clock::now() + *every; options.count == 0 || made < options.count;
       next += *every) {
    std::fflush(stdout);
    SORTIE_ASSIGN_OR_RETURN(const bool runs, waited(folder, next));
    if (!runs) break;
    SORTIE_ASSIGN_OR_RETURN(const Target target, look_at(folder));
    const std::optional<Fault> fault = source.next(target.running);
    if (!fault) continue;  // between two attempts
    ++made;
    fmt::print("{}: {}{}\n", made, printable(fault_text(*fault)),
               fault->kind == FaultKind::link ? " for " + options.link_down : "");
    std::fflush(stdout);
    SORTIE_TRY(make_fault(*fault, target, *link_down));
  }
  SORTIE_ASSIGN_OR_RETURN(const RunRecord last, read_run(folder));
  return fmt::format("{} fault{}; {} is {}\n", made, made == 1 ? "" : "s", last.id,
                     last.state_text());
}

}  // namespace

int run_chaos(const ChaosOptions& options) {
  const auto text = chaos(options);
  return text ? cli::print_text("sortie", *text) : cli::print_error(text.error());
}

}  // namespace sortie::launcher
