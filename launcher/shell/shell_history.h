// The lines that were typed at prompts before: a file of lines, readable by its owner alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

inline constexpr std::size_t kHistoryLines = 1000;

/// The last lines, oldest first; none without the file. A file with many more is cut to these.
/// ErrorCode::config for a file that is not the user's own.
Result<std::vector<std::string>> load_history(const std::filesystem::path& file);

/// Lines of several prompts may mix, but none is broken. Makes the file (0600), not its folder.
Result<> append_history(const std::filesystem::path& file, const std::string& line);

}  // namespace sortie::launcher
