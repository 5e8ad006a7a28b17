// Identifies the process at the other end of a connected Unix socket.
#pragma once

#include <sys/socket.h>

#include <cerrno>

#include "common/base/result.h"

namespace sortie {

/// Process id, user and group of the peer at the time of the connection (SO_PEERCRED).
inline Result<ucred> peer_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return std::unexpected(os_error(errno, "SO_PEERCRED"));
  return peer;
}

}  // namespace sortie
