// Whether a run folder may be trusted with orders: its config names programs to run.
#pragma once

#include <filesystem>

#include "common/base/result.h"

namespace sortie::launcher {

/// ErrorCode::auth unless the folder, and what a new supervisor reads from it, belong to this
/// process's user and nobody else may write there.
Result<> check_own_folder(const std::filesystem::path& run);

}  // namespace sortie::launcher
