// The folder of a run in /dev/shm, in addition to its run folder, for the memory that the MPI ranks
// of a host share. A killed rank removes nothing, and libpmix does so in its place only if it lives
// long enough after it. This folder is always removed together with the run folder.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.h"

namespace sortie::runner {

/// "/dev/shm/sortie-1000-<name of the run folder>".
std::string shared_memory_folder(const std::filesystem::path& run_folder);

/// Creates it, 0700. Errors: /dev/shm is missing or not writable, or the folder already exists.
Result<std::string> make_shared_memory_folder(const std::filesystem::path& run_folder);

/// Removes the run folder and its shared-memory folder. Ignores errors, such as a missing folder.
void remove_with_shared_memory(const std::filesystem::path& run_folder);

}  // namespace sortie::runner
