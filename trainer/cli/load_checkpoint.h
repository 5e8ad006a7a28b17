// load_model() for the verbs: shows progress on stderr.
#pragma once

#include <CLI/CLI.hpp>

#include "trainer/loop/compute_device.h"
#include "trainer/state/model_loader.h"

namespace sortie::trainer {

/// Loads the model at `place` (a checkpoint, or a folder of checkpoints: the newest good one) with
/// `threads` threads, or onto a GPU. `verb` begins the lines of progress. `precision` is as in
/// [model], `device` as in trainer.device.
Result<std::unique_ptr<LoadedModel>> load_checkpoint(std::string_view verb,
                                                     const std::filesystem::path& place,
                                                     int threads, const std::string& precision,
                                                     const std::string& device,
                                                     CheckDepth depth = CheckDepth::hashes);
/// Chooses the device of a verb that runs alone: the first GPU that it sees, or the CPU.
Result<ComputeDevice> choose_device_of_verb(const std::string& wanted);
/// Adds --device.
void add_device_option(CLI::App& command, std::string& device);

}  // namespace sortie::trainer
