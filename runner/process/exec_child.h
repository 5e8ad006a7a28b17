// The steps of a held process between fork and exec.
#pragma once

#include "runner/process/keeper.h"

namespace sortie::runner {

/// Starts a new session and arranges that this process is killed when its parent, `keeper`, dies.
void begin_child(pid_t keeper);

/// Executes the program of `spec`. Call after begin_child(). On failure writes errno (int) to
/// `error_fd` and exits; on success exec closes `error_fd`. `control`: the socket to the runner.
[[noreturn]] void exec_child(const HeldSpec& spec, int error_fd, int control);

}  // namespace sortie::runner
