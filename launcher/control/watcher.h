// The watcher of a detached run: the parent of its supervisor. It sleeps until the supervisor
// exits. If the supervisor did not exit by itself (SIGKILL, a crash, out of memory) and the run
// continues, it starts another supervisor, which adopts the run (adopt.h). It holds no other state:
// if the watcher dies, the run continues without one.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "launcher/control/supervisor_process.h"

namespace sortie::launcher {

/// Backoff for replacing a supervisor, and the decision to stop replacing it. Pure.
class Replacements {
 public:
  /// A supervisor that lived this long resets the count of quick deaths.
  static constexpr std::chrono::seconds kHealthyAfter{10};
  static constexpr std::chrono::milliseconds kFirstPause{500}, kLongestPause{30'000};

  /// `limit`: maximum number of consecutive replacements of supervisors that lived less than
  /// kHealthyAfter.
  explicit Replacements(std::int64_t limit) : limit_(limit) {}

  /// Returns the pause before the replacement of a supervisor that has lived for `lived`; nullopt:
  /// do not replace it. The first replacement is immediate, because hosts hold their ranks for a
  /// limited time.
  std::optional<std::chrono::milliseconds> after(std::chrono::milliseconds lived);

 private:
  std::int64_t limit_, row_ = 0;
};

/// Parameters of a watcher; `limit` 0: no watcher.
struct WatchOrder {
  std::int64_t limit = 0;
  /// Adopts and supervises `run` after its supervisor died, as `attach --adopt` does.
  std::function<int(const std::filesystem::path& run, StartNotice&)> adopt = {};
};

/// Runs the watcher in a child of fork_apart(). Starts the first supervisor and forwards its start
/// report to `notice`; if the start failed, exits like the supervisor did. Then watches until the
/// run has ended, another supervisor has adopted it, or supervisors die too quickly. SIGUSR1 ends a
/// pause before a replacement, because stopping the run needs a supervisor.
[[noreturn]] void become_watcher(Fd notice, const Supervise& first, const WatchOrder& order,
                                 const sigset_t& mask);

}  // namespace sortie::launcher
