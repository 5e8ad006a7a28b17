// Makes folders.
#pragma once

#include <filesystem>
#include <system_error>

#include "common/base/result.h"

namespace sortie::trainer {

/// Makes the folder and those above it; a folder that exists is no error.
inline Result<> make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return std::unexpected(os_error(error.value(), folder.string()));
  return {};
}

}  // namespace sortie::trainer
