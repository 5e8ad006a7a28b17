// Hashes of the runner's file, remembered between commands: SHA-256 of its 6 MB takes longer than
// all else that a command does before its first host.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

namespace sortie::launcher {

struct RunnerHashes {
  std::string sha256;  // lower-case hex
  std::string xxh3;    // of 64 bits, lower-case hex
};

/// Of `bytes`, the whole content of the file that `info` is about. They are remembered in
/// $XDG_CACHE_HOME/sortie/runner-hashes, else ~/.cache, for one file: by device, inode, size and
/// the times of its last changes (ctime, which nobody can set). What is there counts only where it
/// is this user's alone; a file that changed within the last two seconds is not remembered. Where
/// nothing can be remembered, they are computed.
RunnerHashes hashes_of_runner(std::string_view bytes, const struct stat& info);

}  // namespace sortie::launcher
