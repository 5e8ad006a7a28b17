// Pipes and socket pairs. Each end is closed by its owner, and on exec.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie {

struct Pipe {
  Fd read, write;
};

/// Fails with `code`; the default is spawn because most pipes are for a process to be started.
inline Result<Pipe> make_pipe(ErrorCode code = ErrorCode::spawn) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return std::unexpected(os_error(errno, "pipe; raise `ulimit -n`", code));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

/// Two connected stream sockets, to write to a program that may exit meanwhile: with MSG_NOSIGNAL
/// the write then fails instead of raising SIGPIPE.
inline Result<Pipe> make_socket_pair(ErrorCode code = ErrorCode::spawn) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return std::unexpected(os_error(errno, "socketpair; raise `ulimit -n`", code));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

}  // namespace sortie
