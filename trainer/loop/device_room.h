// Whether a GPU has the memory that a rank takes.
#pragma once

#include "common/config/schema.h"
#include "trainer/loop/compute_device.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer {

/// Before memory is taken: what this rank is planned to have on its GPU, 0 where it computes on the
/// CPU. ErrorCode::unsupported where its tensors alone, at the peak of a step, are more than what
/// is free there. Of experts that are shared out, whose rows nobody knows before, the state is
/// counted alone.
Result<std::int64_t> check_device_room(const config::JobConfig& job, const PlanOptions& options,
                                       const ComputeDevice& compute);

}  // namespace sortie::trainer
