// What `sortie check` wants to know of folders and files of a host. Every function bounds its work;
// only a dead network file system can hold one up, and then the launcher knows which.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace sortie::runner::check {

struct FolderFacts {
  bool exists = false;
  std::string at;     // the folder that was looked at: itself, or its nearest ancestor that exists
  std::string error;  // why it can not be looked at, or not be written
  std::uint64_t free_bytes = 0, total_bytes = 0;    // free: for this user
  std::uint64_t free_inodes = 0, total_inodes = 0;  // 0 of 0: the file system does not count them
  bool read_only = false;
  bool writable = false;      // only when asked for
  std::uint64_t sync_us = 0;  // 64 KiB written and synced
};

/// Looks at `path` (or where it would be made) and, with `try_write`, writes and syncs a file
/// without a name there: nothing is left, not even by a crash.
FolderFacts look_at_folder(const std::string& path, bool try_write);

struct FileFacts {
  std::string error;  // why it can not be read
  std::uint64_t size = 0;
  std::uint64_t hash = 0;  // of size, head and tail
};

/// Size and XXH3 of the first and the last 256 KiB. Regular files only: nothing waits for a pipe.
FileFacts look_at_file(const std::string& path);

}  // namespace sortie::runner::check
