// A job's model as `sortie-train plan` reports it.
#pragma once

#include <optional>

#include "common/training/model_cost.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer {

/// Plans a rank of each stage for model.precision, and where that is "auto" for bf16 and for f32:
/// the CPU that will train decides. Memory is that of the rank which takes the most, where a
/// pipeline's stages differ. `version` is of this program. Errors as plan_rank's.
Result<training::ModelCost> plan_model_cost(const config::JobConfig& job, PlanOptions options,
                                            const std::string& version);

}  // namespace sortie::trainer
