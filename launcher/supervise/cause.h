// The first cause: one record of why a run ended, and the rule that finds it among failures that
// come nearly at once. Pure.
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
    signal,       // a rank died of a signal
    oom,          // a rank was killed for lack of memory
    mpi_abort,    // a rank called MPI_Abort
    spawn,        // a rank could not be started
    lost,         // a host or its runner went away
    timeout,      // something did not end or answer in time
    runner,       // a runner gave up, or broke the protocol
    unreachable,  // before any rank started: a host could not be reached or was not ready
    interrupted,  // Ctrl-C, TERM, HUP
    hang,         // ranks made no progress (watchdog/watchdog.h); no host where none is suspected
    planned,      // the run itself ends the ranks, to start them on other hosts
  };
  What what = What::exit;
  std::string host;                   // empty: the launcher itself
  std::optional<std::uint32_t> rank;  // none: the host
  std::uint32_t pid = 0;
  int code = 0;  // exit code, number of the signal, status of MPI_Abort
  bool core_dumped = false;
  int oom = 0;                          // wire::RankExited::oom_killed
  std::uint64_t memory_limit = 0;       // of its container, when that was why; 0 = none
  std::string message;                  // of an error: in its own words, the place included
  bool shown = false;                   // the console has the message already
  std::vector<std::string> last_lines;  // of the rank's stderr, as it wrote them
  /// When, by the launcher's boot clock (common/base/boot_clock.h): decides which was first. The
  /// wall clocks of hosts and launcher may jump.
  std::int64_t at_ms = 0;
  std::int64_t time_unix_ms = 0;  // for people: the same by the launcher's wall clock
  int exit_code = 1;              // that the run has from this
};

/// "exit", "signal", "oom" ...: the field `what` of the event.
std::string_view cause_name(Cause::What what);
/// From exit to unreachable by the class of an error.
Cause::What cause_of_error(ErrorCode code);

/// "rank 5 on h03 (pid 4242) ended by signal 9 (SIGKILL)", and its last lines below it.
std::string cause_text(const Cause& cause);
/// The fields of the event `cause`.
nlohmann::ordered_json cause_json(const Cause& cause);

/// Whether somebody wanted the end: a person, or the run itself. No failure then.
bool is_wanted(Cause::What what);

/// How long after the first failure others may still turn out to be the cause, while ranks run. The
/// order to stop does not wait for it, and when all ranks have ended nothing does. As long as a
/// process of a busy host may have to wait for a processor: a rank that was killed is then reported
/// after its peer that noticed it.
inline constexpr std::chrono::milliseconds kSettleTime{1000};

/// Which of several failures within the settle time was first (index; there is at least one):
///  1. what was inflicted from outside (SIGKILL, SIGSEGV and the like, the OOM killer) before what
///     processes do to themselves when a peer is gone (exit codes, SIGABRT, SIGPIPE, MPI_Abort);
///  2. of equals the earliest, by clocks that were corrected for their host's deviation;
///  3. of equals the lowest rank.
/// An interrupt of the user's, a planned restart, or a host that could not be reached at all, is
/// never outweighed.
std::size_t first_cause(std::span<const Cause> failures);

/// How the other ranks ended: "60 by signal 15 (SIGTERM), 3 with exit code 1"; the most frequent
/// first.
class Aftermath {
 public:
  void add(std::string how);
  std::uint32_t count() const { return total_; }
  /// "63 ranks ended after that: 60 ...", empty when there are none.
  std::string text() const;
  nlohmann::ordered_json json() const;

 private:
  std::vector<std::pair<std::string, std::uint32_t>> sorted() const;
  std::vector<std::pair<std::string, std::uint32_t>> kinds_;
  std::uint32_t total_ = 0;
};

/// The boot clock of a host against ours, from the times in its messages. A message is never older
/// on arrival than it says: the least delay of the last one to two minutes is taken for the
/// deviation. Older ones are forgotten, because no two clocks run at quite the same pace.
class HostClock {
 public:
  static constexpr std::int64_t kWindowMs = 60'000;

  /// A message that says it was sent at `host_ms` came in at `now_ms`.
  void heard(std::uint64_t host_ms, std::int64_t now_ms);
  /// `host_ms` by our clock; never later than `now_ms`, which is also the answer for 0 (unknown).
  std::int64_t ours(std::uint64_t host_ms, std::int64_t now_ms) const;

 private:
  std::optional<std::int64_t> least_, least_before_;  // ours - theirs, of this window, the last one
  std::int64_t window_began_ = 0;
};

/// Milliseconds since 1970.
std::int64_t unix_time_ms();

}  // namespace sortie::launcher
