// A pipe whose ends are closed with their owners and in programs that are started.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie {

struct Pipe {
  Fd read, write;
};

/// ErrorCode::spawn where there is none: a process was to be started with it.
inline Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return std::unexpected(os_error(errno, "pipe", ErrorCode::spawn));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

}  // namespace sortie
