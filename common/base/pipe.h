// Pipes and pairs of sockets whose ends are closed with their owners and in programs that are
// started.
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

/// `code` where there is none; most often a process was to be started with it.
inline Result<Pipe> make_pipe(ErrorCode code = ErrorCode::spawn) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return std::unexpected(os_error(errno, "pipe; raise `ulimit -n`", code));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

/// Two connected sockets, for a program that may end while it is written to: that is an error
/// then, and not SIGPIPE, with MSG_NOSIGNAL.
inline Result<Pipe> make_socket_pair(ErrorCode code = ErrorCode::spawn) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return std::unexpected(os_error(errno, "socketpair; raise `ulimit -n`", code));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

}  // namespace sortie
