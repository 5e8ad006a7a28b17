// A checkpoint of plain weights from one with low-rank updates.
#pragma once

#include <filesystem>

#include "trainer/state/model_loader.h"

namespace sortie::trainer {

/// Merges the updates of `loaded` into its weights and commits a checkpoint without them into the
/// folder `out`: of weights alone, for trainer.load_weights_from, generate, eval and exports.
/// ErrorCode::checkpoint for one that has no updates, ErrorCode::usage where `out` has a checkpoint
/// already. Gives the checkpoint's path.
Result<std::filesystem::path> write_merged(LoadedModel& loaded, const std::filesystem::path& out);

}  // namespace sortie::trainer
