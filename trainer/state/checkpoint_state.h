// What a checkpoint of a run records in addition to its tensors: the progress, the config that
// decides its course, and the facts that its bits depend on.
#pragma once

#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

void record_progress(const TrainingProgress& progress, Manifest& manifest);
TrainingProgress recorded_progress(const Manifest& manifest);

/// Returns the SHA-256 of the part of the config that, with the weights, decides the course of
/// training.
std::string training_digest(config::JobConfig job);

/// Returns the facts, other than the config, that the bits depend on; for the manifest.
std::map<std::string, std::string> depends_on(const BitFacts& facts);

/// Returns what has changed since a checkpoint was saved, in general as "key: was X, is Y": facts
/// of machine and libraries, and keys of the config. With such changes a resumed run may differ in
/// its bits from one that never stopped. Empty if nothing has changed.
Result<std::vector<std::string>> changes_since(const Manifest& manifest,
                                               const std::filesystem::path& folder,
                                               const BitFacts& facts, const config::JobConfig& job);

}  // namespace sortie::trainer
