// What the runner changes for itself and a rank must find unchanged: signal mask and handlers,
// umask, descriptor limit, OOM score. Taken once at start, given back between fork and exec.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>

namespace sortie::runner {

struct ProcessDefaults {
  mode_t umask = 022;
  rlimit open_files{};
  std::string oom_score_adj;  // as read from /proc/self; empty when it stayed, or is unknown
};

/// Remembers the defaults, then makes this process a runner: descriptors 0-2 open and all others
/// close-on-exec, umask 077, as many descriptors as allowed, unlikely to be picked by the OOM
/// killer, SIGPIPE ignored, all signals blocked (signalfd reads them), child subreaper.
ProcessDefaults become_runner();

/// Undoes it in a child before exec. Async-signal-safe calls only where it matters: the process is
/// single-threaded.
void restore(const ProcessDefaults& defaults);

}  // namespace sortie::runner
