// From what a person types to the folder of a run.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

/// The run that `name` means under `state` (its `runs` folder): a whole id, the beginning of
/// exactly one, or "last" (the newest by id, which sorts by time). Errors say which there are.
Result<std::filesystem::path> find_run(const std::filesystem::path& state, const std::string& name);

}  // namespace sortie::launcher
