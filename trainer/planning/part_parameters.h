// Applies [lora] and [optimizer], which refer to the whole model, to the parameters of a rank's
// part.
#pragma once

#include "trainer/models/part.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/optim/optimizer.h"

namespace sortie::trainer {

/// Adds low-rank updates to the parameters that a model has declared in `store`, freezes
/// parameters, assigns the groups of `optimizer`, and turns on FP8 if model.precision says so. Call
/// before the store is cut. Returns what the stage needs to know about the whole model. Patterns
/// refer to the whole model: one that matches only parameters of other stages is not an error.
/// ErrorCode::config for a pattern that matches no parameter at all, and if no parameter is left to
/// train.
Result<StageFacts> prepare_parameters(const config::JobConfig& job, const ModelPart& part,
                                      ParameterStore& store, Optimizer& optimizer);

}  // namespace sortie::trainer
