// Whether all ranks see one folder: then each writes and reads its own part of a checkpoint.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Every rank writes a file into a new folder in rank 0's `folder`, by the path that it has itself;
/// rank 0 looks for all of them. Collective; the same answer on every rank. A rank that can not
/// write there, or has another folder of that name, makes it false. ErrorCode::io where rank 0
/// itself can not write.
Result<bool> all_ranks_write_to(Communicator& communicator, const std::filesystem::path& folder);

/// Every rank sees the very files of rank 0's checkpoint: same bytes of COMMIT, same inode, same
/// time. Writes nothing. Collective; the same answer on every rank.
bool all_ranks_see(Communicator& communicator, const std::filesystem::path& checkpoint);

}  // namespace sortie::trainer
