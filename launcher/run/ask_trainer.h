// What a model costs, asked of a sortie-train: `sortie-train plan --json`.
#pragma once

#include <chrono>
#include <filesystem>

#include "launcher/plan/plan_model.h"

namespace sortie::launcher {

/// Blocks until the program ends, for `limit` at most; it is killed then. ErrorCode::config with
/// its words where it refuses the config. Other errors say in one line why there is no answer: no
/// such program, another version, too slow, crashed.
Result<training::ModelCost> ask_trainer(const std::filesystem::path& trainer,
                                        const CostQuestion& question,
                                        std::chrono::milliseconds limit = std::chrono::seconds(10));

}  // namespace sortie::launcher
