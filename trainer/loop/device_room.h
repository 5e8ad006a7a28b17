// Whether a GPU has enough memory for a rank.
#pragma once

#include "common/config/schema.h"
#include "trainer/loop/compute_device.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer {

/// Returns the bytes that this rank is planned to use on its GPU; 0 on the CPU. Call before memory
/// is allocated. ErrorCode::unsupported if its tensors alone, at the peak of a step, exceed the
/// free memory. With expert parallelism only the state is counted, because the rows of a rank's
/// experts are not known before.
Result<std::int64_t> check_device_room(const config::JobConfig& job, const PlanOptions& options,
                                       const ComputeDevice& compute);

}  // namespace sortie::trainer
