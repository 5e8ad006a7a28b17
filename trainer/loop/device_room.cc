#include "trainer/loop/device_room.h"

#include <fmt/core.h>

#include "common/base/quantity.h"

namespace sortie::trainer {

Result<std::int64_t> check_device_room(const config::JobConfig& job, const PlanOptions& options,
                                       const ComputeDevice& compute) {
  if (!compute.gpu) return 0;
  SORTIE_ASSIGN_OR_RETURN(const RankPlan plan, plan_rank(job, options));
  const MemoryUse& memory = plan.memory;
  const std::int64_t state = memory.weights + memory.gradients + memory.optimizer;
  const bool even_load_assumed = job.topology.expert_parallel_size > 1;
  const auto free = static_cast<std::int64_t>(compute.free_bytes);
  if ((even_load_assumed ? state : memory.tensors()) <= free) return memory.on_gpu();
  const auto bytes = [](std::int64_t count) {
    return short_number(static_cast<double>(count)) + "B";
  };
  const std::string what =
      state > free
          ? fmt::format("weights, gradients and the optimizer's state of this rank take {}",
                        bytes(state))
          : fmt::format(
                "weights, gradients and the optimizer's state of this rank take {}, and "
                "activations {} more at the peak of a step",
                bytes(state), bytes(memory.tensors() - state));
  const char* help =
      state > free ? "share the state out with topology.parameter_sharding"
                   : "lower topology.micro_batch_size, set "
                     "topology.activation_checkpointing_type = \"every_layer\", share the state "
                     "out with topology.parameter_sharding";
  return fail(ErrorCode::unsupported,
              fmt::format("GPU {} ({}): {}, and {} of its {} are free; see nvidia-smi for other "
                          "processes, {}, or use more ranks for each model "
                          "(topology.tensor_parallel_size, topology.pipeline_parallel_size)",
                          compute.device.index, compute.name(), what, bytes(free),
                          bytes(static_cast<std::int64_t>(compute.gpu->memory_bytes)), help));
}

}  // namespace sortie::trainer
