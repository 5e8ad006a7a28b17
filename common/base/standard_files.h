// The standard files of a process that was started with some of them closed (`>&-`, some daemons).
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace sortie {

/// Opens /dev/null as stdin, stdout or stderr if it is closed. Otherwise the next file or
/// connection that is opened gets its number, and text for the terminal is written into it. Reading
/// that stdin and writing that stdout still fail with EBADF; text for that stderr is dropped. Call
/// it first in main().
inline void open_closed_standard_files() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    // open() returns the lowest free number, which is `file`: those below it are open. Programs
    // that are started inherit it.
    if (::fcntl(file, F_GETFD) < 0)
      (void)!::open("/dev/null", file == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
}

}  // namespace sortie
