// Finds out whether all ranks see one folder: then each writes and reads its own part of a
// checkpoint.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Whether all ranks can write to the same folder. Every rank writes a file, by its own path, into
/// a new folder in rank 0's `folder`; rank 0 looks for all of the files. False if a rank cannot
/// write there, or has another folder of that name. An error if rank 0 cannot create the new
/// folder. Collective; the same result on every rank.
Result<bool> all_ranks_write_to(Communicator& communicator, const std::filesystem::path& folder);

/// Whether every rank sees the same files of rank 0's checkpoint: same bytes of COMMIT, same inode,
/// same modification time. Writes nothing. Collective; the same result on every rank.
bool all_ranks_see(Communicator& communicator, const std::filesystem::path& checkpoint);

}  // namespace sortie::trainer
