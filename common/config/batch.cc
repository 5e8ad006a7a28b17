// Batch arithmetic: global = micro * accumulation * data parallel, exactly.
#include <fmt/core.h>

#include "common/config/validate.h"

namespace sortie::config {

BatchOutcome resolve_batch(const TopologyConfig& topology, std::int64_t world_size) {
  BatchOutcome outcome{};
  BatchPlan& plan = outcome.plan;
  plan.data_parallel_size = world_size;
  plan.micro_batch_size = topology.micro_batch_size;
  if (topology.data_parallel_size != 0 && topology.data_parallel_size != world_size)
    outcome.violations.push_back(
        {{"topology.data_parallel_size"},
         fmt::format("{} is set, but the hosts give {} ranks; set {} or leave it out",
                     topology.data_parallel_size, world_size, world_size)});
  const std::int64_t per_pass = plan.micro_batch_size * world_size;
  const std::int64_t wanted_accumulation = topology.gradient_accumulation_steps;
  if (topology.global_batch_size == 0) {
    plan.gradient_accumulation_steps = wanted_accumulation ? wanted_accumulation : 1;
    plan.global_batch_size = per_pass * plan.gradient_accumulation_steps;
    return outcome;
  }
  plan.global_batch_size = topology.global_batch_size;
  plan.gradient_accumulation_steps = topology.global_batch_size / per_pass;
  if (topology.global_batch_size % per_pass != 0) {
    const std::int64_t below = plan.gradient_accumulation_steps * per_pass;
    outcome.violations.push_back(
        {{"topology.global_batch_size"},
         fmt::format("{} is not a multiple of micro_batch_size {} x {} ranks = {}; {}{} is the "
                     "nearest above",
                     topology.global_batch_size, plan.micro_batch_size, world_size, per_pass,
                     below > 0 ? fmt::format("{} is the nearest below, ", below) : "",
                     below + per_pass)});
  } else if (wanted_accumulation != 0 && wanted_accumulation != plan.gradient_accumulation_steps) {
    outcome.violations.push_back(
        {{"topology.gradient_accumulation_steps"},
         fmt::format("{} does not fit: global_batch_size {} / (micro_batch_size {} x {} ranks) = "
                     "{}; set one of the "
                     "two, not both",
                     wanted_accumulation, plan.global_batch_size, plan.micro_batch_size, world_size,
                     plan.gradient_accumulation_steps)});
  }
  return outcome;
}

}  // namespace sortie::config
