// A small file of a save folder, on the disk when the call returns.
#pragma once

#include <filesystem>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

/// The file must not exist yet. Its name is not on the disk before its folder is synced.
Result<> write_small_file(const std::filesystem::path& path, std::string_view text);

}  // namespace sortie::trainer
