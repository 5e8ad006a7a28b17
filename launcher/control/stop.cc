#include "launcher/control/stop.h"

#include <fmt/core.h>
#include <poll.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/base/quantity.h"
#include "launcher/console/console.h"
#include "launcher/control/adopt.h"
#include "launcher/control/control_client.h"
#include "launcher/control/held_ranks.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"

namespace sortie::launcher {
namespace {

using Clock = std::chrono::steady_clock;
/// The supervisor itself bounds the stop (grace and slack); this limit is for a supervisor that is
/// suspended.
constexpr auto kEndsWithin = std::chrono::hours(1) + std::chrono::seconds(60);
constexpr auto kAfterItsEnd = std::chrono::seconds(3);
/// A new supervisor opens its socket within this time.
constexpr auto kSocketWithin = std::chrono::seconds(5);
constexpr int kStopLookMs = 20;

class Stop {
 public:
  Stop(std::filesystem::path run, bool now) : run_(std::move(run)), now_(now) {}

  /// Stops the run and waits for its end. If the supervisor dies meanwhile, sends the order to the
  /// one that the watcher starts.
  Result<std::string> go() {
    SORTIE_ASSIGN_OR_RETURN(RunRecord record, read_run(run_));
    if (record.result)
      return fmt::format("{} had ended already, with exit code {}", record.id,
                         record.result->exit_code);
    if (!record.alive()) {
      SORTIE_ASSIGN_OR_RETURN(const bool in_charge, take_over(record));
      SORTIE_ASSIGN_OR_RETURN(record, read_run(run_));
      if (record.result && !in_charge)
        return fail(
            ErrorCode::lost,
            fmt::format("{0} has ended with exit code {1}; a host that was not reached ends its "
                        "ranks by itself; `sortie status {0}` names it",
                        record.id, record.result->exit_code));
    }
    for (const auto deadline = Clock::now() + kEndsWithin;
         record.alive() && Clock::now() < deadline;) {
      if (record.state == RunState::orphaned)
        hurry();
      else
        SORTIE_TRY(order(record));
      SORTIE_ASSIGN_OR_RETURN(record, read_run(run_));
    }
    if (record.result)
      return fmt::format("{} ended with exit code {}", record.id, record.result->exit_code);
    return fail(ErrorCode::lost, fmt::format("{}: its supervisor died without a result; "
                                             "`sortie status {}` has what is known",
                                             record.id, record.id));
  }

 private:
  /// Starts a supervisor for a run without one: its hosts may hold ranks, which only a supervisor
  /// can end. Returns false if the new supervisor did not get all hosts, or another one has taken
  /// over.
  static Result<bool> take_over(const RunRecord& record) {
    const auto hold = hold_seconds(record.path);
    if (!hold)
      return fail(ErrorCode::lost,
                  fmt::format("{}: its supervisor is gone, and whether its hosts hold ranks is not "
                              "known: {}",
                              record.id, hold.error().message));
    if (*hold == 0)
      return fail(ErrorCode::lost, fmt::format("{}: its supervisor is gone; its hosts end their "
                                               "ranks by themselves, there is nothing to stop",
                                               record.id));
    const double left = hold_left(last_sign_of_life(record.path), *hold);
    if (left == 0)
      return fail(ErrorCode::lost, fmt::format("{}: its supervisor is gone, and its hosts have "
                                               "held its ranks for {}; there is nothing to stop",
                                               record.id, short_time(*hold)));
    const auto held = [&](const std::string& why) {
      return fail(ErrorCode::lost,
                  fmt::format("{}: {}; its hosts may hold ranks for {} more: {}", record.id, why,
                              short_time(left), help_for_held(record.id)));
    };
    if (record.supervisor.elsewhere())
      return held(fmt::format("its supervisor ran on {0}, and may live; use sortie on {0}",
                              printable(record.supervisor.machine)));
    const auto started = adopt_to_stop(record);
    if (!started) return held(started.error().message);
    // If another supervisor has taken the run over meanwhile, it gets the order.
    if (*started != kExitOk && !read_result(record.path) && !latest_supervisor(record.path).alive)
      return held("no supervisor could be started");
    return *started == kExitOk;
  }

  /// Makes the watcher start a supervisor without further pause.
  void hurry() {
    const SupervisorFacts watcher = watcher_of(run_);
    if (watcher.alive && watcher.pid > 0 && watcher.pid != hurried_ &&
        watcher.machine == machine_name() && ::kill(watcher.pid, SIGUSR1) == 0)
      hurried_ = watcher.pid;
    ::poll(nullptr, 0, kStopLookMs);
  }

  /// Sends the order to the supervisor, then waits until it has exited.
  Result<> order(const RunRecord& record) {
    const SupervisorFacts& boss = record.supervisor;
    const auto explained = [&](Error error) {
      std::string advice =
          boss.pid > 0 ? fmt::format("its supervisor is process {} on {}", boss.pid, boss.machine)
                       : help_without_file(run_, boss);
      if (boss.elsewhere()) advice += "; use sortie there";
      return std::unexpected(
          Error{error.code, fmt::format("{}: {}; {}", record.id, error.message, advice)});
    };
    auto client = ControlClient::connect(run_, boss.epoch);
    if (!client) {
      if (!supervisor_of(run_, boss.epoch).alive) return {};  // it has just died
      if (told_epoch_ != boss.epoch) refused_since_ = Clock::now();
      told_epoch_ = boss.epoch;
      if (boss.epoch == 1 || Clock::now() - refused_since_ > kSocketWithin)
        return explained(std::move(client).error());
      ::poll(nullptr, 0, kStopLookMs);
      return {};
    }
    hurried_ = 0;
    const nlohmann::json request = {{"op", "stop"}, {"now", now_}};
    if (auto answer = client->ask(request); !answer) {
      if (answer.error().code == ErrorCode::lost || read_result(run_)) return {};
      return explained(std::move(answer).error());
    }
    const auto deadline = Clock::now() + kEndsWithin;
    for (bool open = true; open && Clock::now() < deadline && !read_result(run_);) {
      pollfd polled = {client->fd(), POLLIN, 0};
      if (::poll(&polled, 1, 1000) > 0) open = client->take();
    }
    for (const auto end = Clock::now() + kAfterItsEnd; Clock::now() < end;
         ::poll(nullptr, 0, kStopLookMs))
      if (read_result(run_) || !supervisor_of(run_, boss.epoch).alive) break;
    return {};
  }

  std::filesystem::path run_;
  bool now_;
  pid_t hurried_ = 0;        // watcher already signalled since the last contact with a supervisor
  unsigned told_epoch_ = 0;  // epoch whose socket does not exist yet
  Clock::time_point refused_since_{};
};

Result<std::string> stop(const std::string& name, const std::string& log_dir, bool now) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(name));
  return Stop(run, now).go();
}

}  // namespace

int stop_run(const std::string& run, const std::string& log_dir, bool now) {
  const auto said = stop(run, log_dir, now);
  print_stderr("{}\n", printable_lines(said ? *said : said.error().message));
  return said ? kExitOk : exit_code_for(said.error().code);
}

}  // namespace sortie::launcher
