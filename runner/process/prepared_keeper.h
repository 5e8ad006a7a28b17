// A keeper and a child of it that are forked before it is known what they will hold and run: a
// command then starts sooner, by two forks and their page faults.
#pragma once

#include <sys/types.h>

#include "common/base/fd.h"
#include "runner/process/process_defaults.h"

namespace sortie::runner {

/// The runner's end. The keeper waits for one order (order.h) and exits if `control` is closed
/// first.
struct PreparedKeeper {
  Fd control;  // empty: there is no such keeper
  pid_t pid = -1;
};

/// Forks one; returns an empty object if the system refuses. The keeper knows only the defaults and
/// what is in this process's memory.
PreparedKeeper prepare_keeper(const ProcessDefaults& defaults);

}  // namespace sortie::runner
