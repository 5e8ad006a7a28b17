// Gets the cost of a model from sortie-train: `sortie-train plan --json`.
#pragma once

#include <chrono>
#include <filesystem>

#include "launcher/plan/plan_model.h"

namespace sortie::launcher {

/// Runs the program `trainer` and returns its answer. Blocks until the program exits; kills it
/// after `limit`. ErrorCode::config with the message of the program if it rejects the config. Other
/// errors say in one line why there is no answer: no such program, another version, too slow,
/// crashed.
Result<training::ModelCost> ask_trainer(const std::filesystem::path& trainer,
                                        const CostQuestion& question,
                                        std::chrono::milliseconds limit = std::chrono::seconds(10));

}  // namespace sortie::launcher
