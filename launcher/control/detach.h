// `sortie run --detach`: the supervisor in a session of its own, which the terminal and the login
// can leave.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "launcher/control/watcher.h"

namespace sortie::launcher {

/// The supervisor's word to the process that started it: the first one counts.
class StartNotice {
 public:
  explicit StartNotice(Fd pipe) : pipe_(std::move(pipe)) {}
  /// Lets go of the terminal: stdin from /dev/null, the rest to `run`/supervisor.log.
  Result<> leave_terminal(const std::filesystem::path& run);
  void started(const std::string& run_id);
  void failed(int exit_code, const std::string& text);
  /// What somebody else has said (`line` ends in a newline).
  void pass_on(const std::string& line);

 private:
  void say(const std::string& text);
  Fd pipe_;
  std::filesystem::path run_;  // whose supervisor.log
};

/// Forks; the child runs `supervise`, its exit code being the run's, with a watcher between them
/// where `watch` asks for one. Returns in the parent, once all ranks run (prints the id and what to
/// do next, 0) or the start has failed (its error, its code).
/// Without `announce` nothing is printed when it has started.
int run_detached(const Supervise& supervise, const WatchOrder& watch, bool announce = true);

}  // namespace sortie::launcher
