// The parameters of a rank's part of a model, as [lora] and [optimizer] say it for the whole.
#pragma once

#include "trainer/models/part.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/optim/optimizer.h"

namespace sortie::trainer {

/// Adds low-rank updates to what a model has declared in `store`, freezes, and gives parameters
/// their groups in `optimizer`; before the store is cut. Patterns are those of the whole model:
/// what matches a parameter of another stage is no error. ErrorCode::config for a pattern that
/// matches none, and when nothing at all is left to be trained.
Result<StageFacts> prepare_parameters(const config::JobConfig& job, const ModelPart& part,
                                      ParameterStore& store, Optimizer& optimizer);

}  // namespace sortie::trainer
