// Jobs of tiny mixtures whose experts are divided among ranks.
#pragma once

#include "tests/support/every_case.h"
#include "tests/support/tiny_mixture.h"
#include "tests/trainer/layouts/layout_runs.h"

namespace sortie::trainer::test {

/// Sizes of the topology. `expert_tensor` 0: derived from the others.
struct ExpertLayout {
  int experts = 1, tensor = 1, expert_tensor = 0, pipeline = 1, replicas = 1;
  bool sequence = false, sharded = false;
  int context = 1;
  int ranks() const { return tensor * context * pipeline * replicas; }
};

/// Returns a job with eight experts, which 2, 4 and 8 ranks divide evenly.
inline config::JobConfig experts_job(const std::string& architecture) {
  config::JobConfig job = mixture_job(architecture);
  job.model.moe.num_experts = 8;
  if (architecture == "deepseek-v3") job.model.moe.num_groups = 4;
  job.model.sequence_length = 20;
  job.optimizer.eps = 1e-4;  // keeps small moments from amplifying rounding differences
  return job;
}

inline config::JobConfig with_experts_on(config::JobConfig job, const ExpertLayout& layout) {
  job.topology.expert_parallel_size = layout.experts;
  job.topology.expert_tensor_parallel_size = layout.expert_tensor;
  job.topology.tensor_parallel_size = layout.tensor;
  job.topology.sequence_parallel = layout.sequence;
  job.topology.context_parallel_size = layout.context;
  job.topology.pipeline_parallel_size = layout.pipeline;
  if (layout.sharded) job.topology.parameter_sharding = "optimizer";
  return job;
}

}  // namespace sortie::trainer::test
