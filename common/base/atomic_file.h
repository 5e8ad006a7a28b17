// Whole-file reads and crash-safe whole-file writes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie {

/// Reads at most `max_bytes`. A larger file is an Error that names the limit.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes = 64u << 20);

/// Writes to "<path>.tmp-<pid>", calls fsync, renames the file to `path` and fsyncs the directory.
/// After a crash at any moment `path` holds either the old content or the new one.
Result<> write_file_atomic(const std::filesystem::path& path, std::string_view content,
                           int mode = 0644);

/// Calls fsync on a file or directory. A failed fsync is final for that file: a retry that succeeds
/// proves nothing.
Result<> sync_path(const std::filesystem::path& path);

}  // namespace sortie
