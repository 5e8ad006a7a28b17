// Names and locks of the stage cache's files, and their removal. For stage_cache.h and
// stage_pruner.h.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/file_lock.h"

namespace sortie::runner {

/// Files that one step of a longer work on a tree handles. Even on a slow network file system a
/// step takes less time than passes between two heartbeats.
inline constexpr std::size_t kStagedAtOnce = 256;

/// Whether the text is the hash of a tree: 64 hexadecimal digits.
bool is_stage_key(std::string_view text);

/// Opens a lock file; creates it if needed.
Fd open_stage_lock(const std::string& path);
/// Locks the file (LOCK_SH or LOCK_EX) only if it still has that name: another runner may have
/// removed it meanwhile.
FileLock take_stage_lock(const Fd& fd, int kind, const std::string& path);

/// Removes up to kStagedAtOnce files of a tree. Returns true if nothing is left, or if a file can
/// not be removed; else call it again.
bool remove_some(const std::filesystem::path& tree);

}  // namespace sortie::runner
