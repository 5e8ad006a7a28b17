// History of lines typed at earlier prompts: a file that only its owner can read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

inline constexpr std::size_t kHistoryLines = 1000;

/// Returns the last kHistoryLines lines, oldest first. Empty if the file does not exist. A file
/// with more than twice as many lines is truncated to these. ErrorCode::config if the file is not a
/// regular file of this user.
Result<std::vector<std::string>> load_history(const std::filesystem::path& file);

/// Appends a line. Lines of concurrent prompts may interleave, but each stays intact. Creates the
/// file (0600), but not its folder.
Result<> append_history(const std::filesystem::path& file, const std::string& line);

}  // namespace sortie::launcher
