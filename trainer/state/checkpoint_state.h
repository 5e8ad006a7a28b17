// What a checkpoint of a run records beside its tensors: the progress, the config that decides its
// course, and what its bits depend on.
#pragma once

#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

void record_progress(const TrainingProgress& progress, Manifest& manifest);
TrainingProgress recorded_progress(const Manifest& manifest);

/// SHA-256 of the part of the config that decides the course of training besides the weights.
std::string training_digest(config::JobConfig job);

/// What the bits depend on besides the config, for the manifest.
std::map<std::string, std::string> depends_on(const BitFacts& facts);

/// What has changed since a checkpoint was saved, as "key: was X, is Y", so that a resumed run can
/// not have the bits of one that was never stopped: facts of machine and libraries, and keys of the
/// config. Empty where nothing has.
Result<std::vector<std::string>> changes_since(const Manifest& manifest,
                                               const std::filesystem::path& folder,
                                               const BitFacts& facts, const config::JobConfig& job);

}  // namespace sortie::trainer
