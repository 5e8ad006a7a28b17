// Whether a GPU has the memory that a rank's state takes.
#pragma once

#include "common/config/schema.h"
#include "trainer/loop/compute_device.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer {

/// Before memory is taken: ErrorCode::unsupported where weights, gradients and the optimizer's state
/// of this rank, as planned, are more than what is free on its GPU. What else a step takes depends
/// on its kernels, and is not counted. Of the CPU always good.
Result<> check_device_room(const config::JobConfig& job, const PlanOptions& options,
                           const ComputeDevice& compute);

}  // namespace sortie::trainer
