// Settings that the runner changes for itself and must restore for ranks: signal mask and handlers,
// umask, descriptor limit, OOM score. Saved once at start, restored between fork and exec.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>

namespace sortie::runner {

struct ProcessDefaults {
  mode_t umask = 022;
  rlimit open_files{};
  std::string oom_score_adj;  // as read from /proc/self; empty if unchanged or unknown
};

/// Saves the defaults, then sets up this process as a runner: opens descriptors 0-2 and closes all
/// others, sets umask 077, raises the descriptor limit to the maximum, makes the OOM killer
/// unlikely to pick it, ignores SIGPIPE, blocks all signals (signalfd reads them), and becomes a
/// child subreaper.
ProcessDefaults become_runner();

/// Restores the defaults in a child before exec. The process must be single-threaded: not all calls
/// are async-signal-safe.
void restore(const ProcessDefaults& defaults);

}  // namespace sortie::runner
