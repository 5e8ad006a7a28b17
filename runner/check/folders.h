// What `sortie check` reports about folders and files of a host. Every function bounds its work.
// Only a dead network file system can block one, and then the launcher knows which.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace sortie::runner::check {

struct FolderFacts {
  bool exists = false;
  std::string at;     // the folder itself, or its nearest existing ancestor
  std::string error;  // why it can not be examined or written
  std::uint64_t free_bytes = 0, total_bytes = 0;    // free: for this user
  std::uint64_t free_inodes = 0, total_inodes = 0;  // both 0: not counted by the file system
  bool read_only = false;
  bool writable = false;      // only if tested
  std::uint64_t sync_us = 0;  // time to write and sync 64 KiB
};

/// Examines `path`, or its nearest existing ancestor. With `try_write`, also writes and syncs an
/// unnamed file there, so that nothing is left even after a crash.
FolderFacts look_at_folder(const std::string& path, bool try_write);

struct FileFacts {
  std::string error;  // why it can not be read
  std::uint64_t size = 0;
  std::uint64_t hash = 0;  // of size, head and tail
};

/// Size, and XXH3 of the first and the last 256 KiB. Regular files only, so it never blocks on a
/// pipe.
FileFacts look_at_file(const std::string& path);

}  // namespace sortie::runner::check
