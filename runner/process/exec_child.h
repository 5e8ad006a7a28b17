// The few lines between fork and exec of a held process.
#pragma once

#include "runner/process/keeper.h"

namespace sortie::runner {

/// Has a session of its own from here, and ends with its parent, which is `keeper`.
void begin_child(pid_t keeper);

/// Becomes the program of `spec`, after begin_child(). On failure writes errno (int) to `error_fd`
/// and exits; on success `error_fd` closes by itself. `control`: the socket to the runner.
[[noreturn]] void exec_child(const HeldSpec& spec, int error_fd, int control);

}  // namespace sortie::runner
