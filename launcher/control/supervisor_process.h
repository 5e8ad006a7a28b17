// A supervisor as a child process in a session of its own, and the word with which it says how its
// start went. Used by the command that starts it, or by a watcher between them.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

class StartNotice;

/// What a supervisor does; returns the run's exit code.
using Supervise = std::function<int(StartNotice&)>;

struct ChildProcessWithNotice {
  pid_t pid = -1;
  Fd notice;  // one line (StartNotice), or the end of the stream
};

/// Forks. The child has the signal mask `mask`, and nothing of this process but the standard
/// descriptors and the pipe, which `body` gets; it must not return.
Result<ChildProcessWithNotice> fork_apart(const std::function<void(Fd notice)>& body,
                                          const sigset_t& mask);

/// In such a child: supervises. What only a bug causes ends it by SIGABRT, as a failed check does.
[[noreturn]] void become_supervisor(Fd notice, const Supervise& supervise);

/// Blocks INT and TERM, so that none comes between a fork and who passes them on; the mask before.
sigset_t block_signals();

struct Heard {
  std::string line;
  int passed_on = 0;  // the last signal; 0: none
};
/// What `child` says, until the end of a line or of the stream. INT and TERM, which must be
/// blocked, go on to it meanwhile; otherwise `mask` holds.
Heard listen_to(const ChildProcessWithNotice& child, const sigset_t& mask);

}  // namespace sortie::launcher
