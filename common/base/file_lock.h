// flock without waiting, and what its errors mean. Some network file systems have no locks: what
// somebody has locked and what nobody can lock must not look the same.
#pragma once

#include <sys/file.h>

#include <cerrno>

namespace sortie {

enum class FileLock : unsigned char {
  taken,   // ours until the descriptor and its copies are closed
  held,    // somebody else has it
  absent,  // the file system has no locks: Lustre without `flock`, NFS without lockd. Nobody has it
  failed,  // errno says why
};

/// flock(fd, LOCK_SH or LOCK_EX) without waiting.
inline FileLock try_lock_file(int fd, int operation) {
  while (::flock(fd, operation | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return FileLock::held;
    const bool no_locks = errno == ENOSYS || errno == ENOLCK || errno == EOPNOTSUPP;
    return no_locks ? FileLock::absent : FileLock::failed;
  }
  return FileLock::taken;
}

/// As above, where the lock only keeps apart those who can be kept apart: true when nobody has it.
inline bool lock_file_or_none(int fd, int operation) {
  const FileLock lock = try_lock_file(fd, operation);
  return lock == FileLock::taken || lock == FileLock::absent;
}

}  // namespace sortie
