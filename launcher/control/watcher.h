// The watcher of a detached run: the parent of its supervisor. It sleeps until that one ends; where
// the supervisor has not chosen its end (SIGKILL, a crash, lack of memory) and the run goes on, it
// starts another one, which adopts the run (adopt.h). It holds nothing: without a watcher the run
// is as one that has none.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "launcher/control/supervisor_process.h"

namespace sortie::launcher {

/// How long to wait before a supervisor is replaced, and when that is given up. Pure.
class Replacements {
 public:
  /// A supervisor that lived so long ends a row of quick deaths.
  static constexpr std::chrono::seconds kHealthyAfter{10};
  static constexpr std::chrono::milliseconds kFirstPause{500}, kLongestPause{30'000};

  /// `limit`: replacements in a row after supervisors that lived less than kHealthyAfter.
  explicit Replacements(std::int64_t limit) : limit_(limit) {}

  /// After one that has lived so long; nothing: no more. The first of a row comes at once: hosts
  /// hold their ranks for a limited time.
  std::optional<std::chrono::milliseconds> after(std::chrono::milliseconds lived);

 private:
  std::int64_t limit_, row_ = 0;
};

/// What a watcher has to know; `limit` 0: there is none.
struct WatchOrder {
  std::int64_t limit = 0;
  /// Supervises that run in place of one that died, as `attach --adopt` does.
  std::function<int(const std::filesystem::path& run, StartNotice&)> adopt = {};
};

/// In a child of fork_apart(): starts the first supervisor, hands on what it says of its start
/// through `notice`, and ends as it did where that failed. Then watches, until the run has ended,
/// somebody else has adopted it, or supervisors die too quickly.
/// SIGUSR1 ends a pause before a replacement: who wants to stop the run needs a supervisor.
[[noreturn]] void become_watcher(Fd notice, const Supervise& first, const WatchOrder& order,
                                 const sigset_t& mask);

}  // namespace sortie::launcher
