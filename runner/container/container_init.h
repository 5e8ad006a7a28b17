// Process 1 of a container: the same binary, run as `sortie-runner container-init SOCKET
// [UID:GID]`. It connects to the runner, forks a keeper for each order and reaps. It exits when the
// runner is gone or has closed the socket and no keeper is left. The container ends with it.
#pragma once

#include <string>

namespace sortie::runner::container {

/// Returns the exit code. `user`: user to change to first ("1000:100", empty = no change), for
/// engines that can not start a container as another user.
int container_init(const std::string& socket_path, const std::string& user);

}  // namespace sortie::runner::container
