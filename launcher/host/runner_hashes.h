// Cached hashes of the runner's file. Computing SHA-256 of its 6 MB takes longer than everything
// else that a command does before it contacts its first host.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

namespace sortie::launcher {

struct RunnerHashes {
  std::string sha256;  // lower-case hex
  std::string xxh3;    // 64-bit, lower-case hex
};

/// Returns the hashes of `bytes`, the whole content of the file described by `info`. Caches those
/// of one file in $XDG_CACHE_HOME/sortie/runner-hashes (default: ~/.cache), keyed by device, inode,
/// size, mtime and ctime (which no program can set). The cache is trusted only if it belongs to
/// this user and no one else can write it. A file that changed within the last two seconds is not
/// cached. Without a usable cache the hashes are computed.
RunnerHashes hashes_of_runner(std::string_view bytes, const struct stat& info);

}  // namespace sortie::launcher
