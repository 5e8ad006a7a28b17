// The folder of a run in /dev/shm, beside its run folder: where the MPI ranks of a host have the
// memory that they share. A rank that is killed removes nothing, and libpmix does it in its place
// only where it lives long enough after it; this one goes with the run folder, whoever removes it.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.h"

namespace sortie::runner {

/// "/dev/shm/sortie-1000-<name of the run folder>".
std::string shared_memory_folder(const std::filesystem::path& run_folder);

/// Makes it, 0700. Errors: there is no /dev/shm that can be written to, or somebody has made it.
Result<std::string> make_shared_memory_folder(const std::filesystem::path& run_folder);

/// Removes the run folder and that one, as far as they are there and ours.
void remove_with_shared_memory(const std::filesystem::path& run_folder);

}  // namespace sortie::runner
