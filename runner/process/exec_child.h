// The few lines between fork and exec of a held process.
#pragma once

#include "runner/process/keeper.h"

namespace sortie::runner {

/// Becomes the program of `spec`, in a session of its own. On failure writes errno (int) to
/// `error_fd` and exits; on success `error_fd` closes by itself. `keeper` is the expected parent,
/// `control` the socket to the runner.
[[noreturn]] void exec_child(const HeldSpec& spec, int error_fd, pid_t keeper, int control);

}  // namespace sortie::runner
