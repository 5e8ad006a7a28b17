// Writes small files of a save folder durably.
#pragma once

#include <filesystem>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

/// Creates, writes and fsyncs the file, which must not exist yet. Its name is durable only after
/// its folder is synced.
Result<> write_small_file(const std::filesystem::path& path, std::string_view text);

}  // namespace sortie::trainer
