// Makes a checkpoint of plain weights from one with low-rank updates.
#pragma once

#include <filesystem>

#include "trainer/state/model_loader.h"

namespace sortie::trainer {

/// Merges the updates of `loaded` into its weights and commits a checkpoint without them to the
/// folder `out`. It has weights only, for trainer.load_weights_from, generate, eval and exports.
/// ErrorCode::checkpoint if there are no updates, ErrorCode::usage if `out` already has a
/// checkpoint. Returns the checkpoint's path.
Result<std::filesystem::path> write_merged(LoadedModel& loaded, const std::filesystem::path& out);

}  // namespace sortie::trainer
