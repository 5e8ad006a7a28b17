// The first cause: one record of why a run ended, and the rule that finds it among nearly
// simultaneous failures. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

struct Cause {
  enum class What {
    exit,         // a rank's exit code
    signal,       // a rank was killed by a signal
    oom,          // a rank was killed for lack of memory
    mpi_abort,    // a rank called MPI_Abort
    no_finalize,  // a rank exited with 0 without MPI_Finalize, and other ranks continued
    spawn,        // a rank could not be started
    lost,         // the connection to a host or its runner was lost
    timeout,      // something did not end or answer in time
    runner,       // a runner gave up, or broke the protocol
    unreachable,  // before any rank started: a host could not be reached or was not ready
    interrupted,  // Ctrl-C, TERM, HUP
    hang,         // ranks made no progress (watchdog/watchdog.h); no host where none is suspected
    planned,      // the run itself stops the ranks, to restart them on other hosts
  };
  What what = What::exit;
  std::string host;                   // empty = the launcher itself
  std::optional<std::uint32_t> rank;  // nullopt = the host
  std::uint32_t pid = 0;
  int code = 0;  // exit code, number of the signal, status of MPI_Abort
  bool core_dumped = false;
  int oom = 0;                          // wire::RankExited::oom_killed
  std::uint64_t memory_limit = 0;       // of its container if that was exceeded; 0 = none
  std::string message;                  // of an error, including the place
  bool shown = false;                   // the message was printed already
  std::vector<std::string> last_lines;  // of the rank's stderr, as it wrote them
  /// Time of the failure by the launcher's boot clock (common/base/boot_clock.h). Decides which
  /// failure was first, because the wall clocks of hosts and launcher may jump.
  std::int64_t at_ms = 0;
  std::int64_t time_unix_ms = 0;  // the same by the launcher's wall clock, for display
  int exit_code = 1;              // exit code of the run for this cause
};

/// "exit", "signal", "oom" ...: the field `what` of the event.
std::string_view cause_name(Cause::What what);
/// Maps an error code to spawn, lost, timeout or interrupted; all other codes to runner.
Cause::What cause_of_error(ErrorCode code);

/// "rank 5 on h03 (pid 4242) ended by signal 9 (SIGKILL)", followed by the last lines of its
/// stderr.
std::string cause_text(const Cause& cause);
/// Fields of the event `cause`.
nlohmann::ordered_json cause_json(const Cause& cause);

/// Whether the end was requested by the user or planned by the run, so that it is no failure.
bool is_wanted(Cause::What what);

/// For this time after the first failure another failure may still turn out to be the cause, while
/// ranks run. The order to stop does not wait for it. If all ranks have ended the cause is settled
/// at once. The time is as long as a process on a busy host may wait for a CPU: the end of a killed
/// rank may be reported that much later than the end of the peer that noticed it.
inline constexpr std::chrono::milliseconds kSettleTime{1000};
/// The same while the connection to a host is broken (runner.on_launcher_loss = "hold ..."):
/// whether its runner lives shows only at the next connection.
inline constexpr std::chrono::milliseconds kMostSettleTime{5000};

/// Returns the index of the first cause among `failures` within the settle time (at least one):
///  1. Inflicted ends (SIGKILL, SIGSEGV and the like, the OOM killer, the end of a rank's container
///     from outside) come before ends that a process causes itself when a peer is gone (exit codes,
///     SIGABRT, SIGPIPE, MPI_Abort) or when it is asked for its stacks (SIGQUIT).
///  2. Among equals the earliest counts, by clocks corrected for the offset of their host.
///  3. Among equals the lowest rank counts.
/// An interrupt by the user, a planned restart and an unreachable host come before all others.
std::size_t first_cause(std::span<const Cause> failures);

/// Counts how the other ranks ended: "60 by signal 15 (SIGTERM), 3 with exit code 1", the most
/// frequent first.
class Aftermath {
 public:
  void add(std::string how);
  std::uint32_t count() const { return total_; }
  /// "63 ranks ended after that: 60 ..."; empty if there are none.
  std::string text() const;
  nlohmann::ordered_json json() const;

 private:
  std::vector<std::pair<std::string, std::uint32_t>> sorted() const;
  std::vector<std::pair<std::string, std::uint32_t>> kinds_;
  std::uint32_t total_ = 0;
};

/// Offset of a host's boot clock to the launcher's, from the timestamps in its messages. A message
/// can not arrive before it is sent, so the smallest difference of the last one to two minutes is
/// taken as the offset. Older differences are dropped, because clocks drift.
class HostClock {
 public:
  static constexpr std::int64_t kWindowMs = 60'000;

  /// Records a message that was sent at `host_ms` by the host's clock and arrived at `now_ms`.
  void heard(std::uint64_t host_ms, std::int64_t now_ms);
  /// Converts `host_ms` to the launcher's clock. Never later than `now_ms`; returns `now_ms` for 0
  /// (unknown).
  std::int64_t ours(std::uint64_t host_ms, std::int64_t now_ms) const;

 private:
  // Smallest launcher - host, of this window and the previous one.
  std::optional<std::int64_t> least_, least_before_;
  std::int64_t window_began_ = 0;
};

/// Milliseconds since 1970.
std::int64_t unix_time_ms();

}  // namespace sortie::launcher
