// Starts a supervisor as a child process in a separate session, and receives its report on the
// start. Used by the command that starts it, or by a watcher between the two.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

class StartNotice;

/// Body of a supervisor; returns the exit code of the run.
using Supervise = std::function<int(StartNotice&)>;

struct ChildProcessWithNotice {
  pid_t pid = -1;
  Fd notice;  // read end: one line (StartNotice), or the end of the stream
};

/// Forks. The child has signal mask `mask` and inherits only the standard descriptors and the pipe,
/// which is passed to `body`. `body` must not return.
Result<ChildProcessWithNotice> fork_apart(const std::function<void(Fd notice)>& body,
                                          const sigset_t& mask);

/// Runs the supervisor in a child of fork_apart(). An exception, which is a bug, ends it by
/// SIGABRT, like a failed check.
[[noreturn]] void become_supervisor(Fd notice, const Supervise& supervise);

/// Blocks SIGINT and SIGTERM, so that none is lost between fork and listen_to(). Returns the
/// previous mask.
sigset_t block_signals();

struct Heard {
  std::string line;
  int passed_on = 0;  // the last signal passed on; 0: none
};
/// Reads from `child` until the end of a line or of the stream. Meanwhile passes SIGINT and
/// SIGTERM, which must be blocked, on to it. Waits with signal mask `mask`.
Heard listen_to(const ChildProcessWithNotice& child, const sigset_t& mask);

}  // namespace sortie::launcher
