// Process 1 of a container: the same binary, as `sortie-runner container-init SOCKET [UID:GID]`. It
// connects to the runner, forks a keeper for each order, reaps, and ends when the runner is gone or
// has closed the socket and no keeper is left. It holds the container's lease: with it the
// container ends.
#pragma once

#include <string>

namespace sortie::runner::container {

/// Returns the exit code. `user`: to become this one first ("1000:100", empty = stay), for engines
/// that can not start a container as somebody else.
int container_init(const std::string& socket_path, const std::string& user);

}  // namespace sortie::runner::container
