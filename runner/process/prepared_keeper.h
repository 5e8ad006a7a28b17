// A keeper, and a child of it, that are forked before anybody knows what they will hold and become:
// a command then starts two forks and their page faults earlier.
#pragma once

#include <sys/types.h>

#include "common/base/fd.h"
#include "runner/process/process_defaults.h"

namespace sortie::runner {

/// The runner's end. The keeper waits for one order (order.h), and ends when `control` is closed
/// without one.
struct PreparedKeeper {
  Fd control;  // none: there is no such keeper
  pid_t pid = -1;
};

/// Forks one; none where the system refuses. It knows nothing but the defaults and what this
/// process has in its memory.
PreparedKeeper prepare_keeper(const ProcessDefaults& defaults);

}  // namespace sortie::runner
