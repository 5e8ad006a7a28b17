#include "trainer/loop/device_room.h"

#include <fmt/core.h>

#include "common/base/quantity.h"

namespace sortie::trainer {

Result<> check_device_room(const config::JobConfig& job, const PlanOptions& options,
                           const ComputeDevice& compute) {
  if (!compute.gpu) return {};
  SORTIE_ASSIGN_OR_RETURN(const RankPlan plan, plan_rank(job, options));
  const std::int64_t state = plan.memory.weights + plan.memory.gradients + plan.memory.optimizer;
  const auto free = static_cast<std::int64_t>(compute.free_bytes);
  if (state <= free) return {};
  const auto bytes = [](std::int64_t count) { return short_number(static_cast<double>(count)) + "B"; };
  return fail(ErrorCode::unsupported,
              fmt::format("GPU {} ({}): weights, gradients and the optimizer's state of this rank "
                          "take {}, and {} of its {} are free; see nvidia-smi for other processes, "
                          "share the state out with topology.parameter_sharding, or use more ranks "
                          "for each model (topology.tensor_parallel_size, "
                          "topology.pipeline_parallel_size)",
                          compute.device.index, compute.name(), bytes(state), bytes(free),
                          bytes(static_cast<std::int64_t>(compute.gpu->memory_bytes))));
}

}  // namespace sortie::trainer
