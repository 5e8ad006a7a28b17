// What a checkpoint of a run records beside its tensors: the progress, the config that decides its
// course, and what its bits depend on.
#pragma once

#include "trainer/state/checkpointer.h"

namespace sortie::trainer {

void record_progress(const TrainingProgress& progress, Manifest& manifest);
TrainingProgress recorded_progress(const Manifest& manifest);

/// SHA-256 of the part of the config that decides the course of training besides the weights:
/// resumed under another one, it is another run.
std::string training_digest(config::JobConfig job);

std::map<std::string, std::string> depends_on(const BitFacts& facts, const config::JobConfig& job);

}  // namespace sortie::trainer
