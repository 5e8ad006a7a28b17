// The cost of a job's model, as `sortie-train plan` reports it.
#pragma once

#include <optional>

#include "common/training/model_cost.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer {

/// Plans one rank of each stage in model.precision; if that is "auto", in bf16 and in f32, because
/// the CPU that will train decides. Memory is that of the stage that needs the most. `version`: of
/// this program. Errors like plan_rank(); also ErrorCode::config for "fp8" without a GPU.
Result<training::ModelCost> plan_model_cost(const config::JobConfig& job, PlanOptions options,
                                            const std::string& version);

}  // namespace sortie::trainer
