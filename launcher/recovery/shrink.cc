#include "launcher/recovery/shrink.h"

#include "common/config/validate.h"

namespace sortie::launcher {

std::optional<config::TopologyConfig> topology_for(const config::JobConfig& job,
                                                   std::int64_t configured, std::int64_t ranks) {
  if (!job.runner.program.empty() || ranks == configured) return job.topology;
  const config::BatchOutcome before = config::resolve_batch(job.topology, configured);
  if (!before.violations.empty()) return std::nullopt;
  config::TopologyConfig topology = job.topology;
  topology.data_parallel_size = 0;  // as many as there are ranks
  topology.global_batch_size = before.plan.global_batch_size;
  topology.micro_batch_size = before.plan.micro_batch_size;
  topology.gradient_accumulation_steps = 0;
  const config::BatchOutcome after = config::resolve_batch(topology, ranks);
  if (!after.violations.empty()) return std::nullopt;
  return topology;
}

}  // namespace sortie::launcher
