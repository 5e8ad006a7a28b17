// Whole-file reads and crash-safe whole-file writes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie {

/// Reads at most `max_bytes`; a larger file is an Error that names the limit.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes = 64u << 20);

/// Writes to "<path>.tmp-<pid>", fsyncs, renames over `path` and fsyncs the directory: after a
/// crash at any moment `path` holds either the old content or the new one.
Result<> write_file_atomic(const std::filesystem::path& path, std::string_view content,
                           int mode = 0644);

/// fsync of a file or directory by path. A failed fsync is final for that file.
Result<> sync_path(const std::filesystem::path& path);

}  // namespace sortie
