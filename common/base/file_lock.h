// Non-blocking flock with classified errors. Some network file systems do not support locks. That
// case must not look like a lock that another process holds.
#pragma once

#include <sys/file.h>

#include <cerrno>

namespace sortie {

enum class FileLock : unsigned char {
  taken,   // we hold it until the descriptor and its duplicates are closed
  held,    // another process holds it
  absent,  // the file system does not support locks: Lustre without `flock`, NFS without lockd
  failed,  // errno says why
};

/// Calls flock(fd, operation) without blocking; `operation` is LOCK_SH or LOCK_EX.
inline FileLock try_lock_file(int fd, int operation) {
  while (::flock(fd, operation | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return FileLock::held;
    const bool no_locks = errno == ENOSYS || errno == ENOLCK || errno == EOPNOTSUPP;
    return no_locks ? FileLock::absent : FileLock::failed;
  }
  return FileLock::taken;
}

/// For locks that are best effort: true if the lock was taken or the file system has no locks,
/// false if another process holds it or flock failed.
inline bool lock_file_or_none(int fd, int operation) {
  const FileLock lock = try_lock_file(fd, operation);
  return lock == FileLock::taken || lock == FileLock::absent;
}

}  // namespace sortie
