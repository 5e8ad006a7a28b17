// Checks whether a run folder can be trusted: its config names programs to run.
#pragma once

#include <filesystem>

#include "common/base/result.h"

namespace sortie::launcher {

/// ErrorCode::auth unless the folder and the files that a new supervisor reads or writes in it, and
/// those of the folders of its sites, belong to the user of this process and no other user may
/// write to them.
Result<> check_own_folder(const std::filesystem::path& run);

}  // namespace sortie::launcher
