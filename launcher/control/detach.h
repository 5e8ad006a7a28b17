// `sortie run --detach`: runs the supervisor in a separate session, which survives the terminal and
// the logout.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "launcher/control/watcher.h"

namespace sortie::launcher {

/// Reports from a new supervisor to the process that started it whether the start succeeded. Only
/// the first report is sent. Not thread-safe.
class StartNotice {
 public:
  explicit StartNotice(Fd pipe) : pipe_(std::move(pipe)) {}
  /// Detaches from the terminal: stdin from /dev/null, stdout and stderr to `run`/supervisor.log.
  Result<> leave_terminal(const std::filesystem::path& run);
  void started(const std::string& run_id);
  void failed(int exit_code, const std::string& text);
  /// Forwards the report of another process (`line` ends in a newline).
  void pass_on(const std::string& line);

 private:
  void say(const std::string& text);
  Fd pipe_;
  std::filesystem::path run_;  // the run of supervisor.log
};

/// Forks. The child runs `supervise`, whose exit code is the run's; a watcher runs between the two
/// processes if `watch` asks for one. The parent returns once all ranks run and the run folder says
/// so (0, after printing the run ID and further commands, unless `announce` is false) or once the
/// start has failed (its exit code, after printing the error).
int run_detached(const Supervise& supervise, const WatchOrder& watch, bool announce = true);

}  // namespace sortie::launcher
