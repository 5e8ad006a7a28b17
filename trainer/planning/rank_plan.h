// What a rank of a training job takes, found by letting it train on the meta device: the real model
// declares its parameters, the real graph and optimizer take a step, and the real allocator counts.
// There is no second description of a model, an op or a kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/parallel/counting.h"
#include "trainer/planning/memory_use.h"

namespace sortie::trainer {

struct ParameterCount {
  std::int64_t total = 0;    // without padding and state
  std::int64_t active = 0;   // of them, those that a token meets: top k of the experts
  std::int64_t trained = 0;  // of the total
};
/// Of what a model declared, with what [lora] added and [optimizer] froze.
ParameterCount count_parameters(const ParameterStore& store);

struct PlanOptions {
  std::int64_t micro_batch_size = 1;  // sequences
  std::int64_t world_size = 1;        // ranks of the job
  int rank = 0;                       // the one that is planned
  DType dtype = DType::f32;           // of products
  int threads = 1;                    // of the rank: kernels work in memory of each thread
  bool gpu = false;                   // it computes on one
};

struct RankPlan {
  ParameterCount parameters;
  /// Floating-point operations of one trained token: for every weight that it is multiplied with 2
  /// forward, 2 where gradients flow through and 2 where the weight has one; for every key that it
  /// sees in a layer, on average over the sequence, 2 H (D + Dv), and twice that backward. Not
  /// counted: recomputation, and that documents hide keys.
  double flop_per_token = 0.0;
  /// Kernels' memory and packed weights are those that oneDNN names for this machine's CPU. Where
  /// that has no bf16 products, plans of bf16 have none of its kernels' memory. Of a GPU: those of
  /// ops/cuda, and constants for what its driver and NCCL take, which nobody has measured.
  MemoryUse memory;
  /// Payload that it sends in a step.
  SentBytes sent;
  /// The share of a step in which the stages of a pipeline wait for each other, were all of its
  /// runs equally long (parallel/schedule.h).
  double bubble = 0.0;
  /// What of the model is not in FP8, where that is asked for (fp8_rules.h); empty: nothing to say.
  std::string note;
};

/// Of one rank; replicas are alike. Parameters and operations are those of its stage. Takes time by
/// the number of parameters (one of 8e9 in 32 layers: some hundredths of a second) and no memory to
/// speak of. Sets OpenMP's threads, as any ExecutionContext does. ErrorCode::config for a pattern
/// that matches no parameter, for sizes that each are allowed and together are absurd, and when
/// nothing is left to be trained.
Result<RankPlan> plan_rank(const config::JobConfig& job, const PlanOptions& options);

/// Of the first rank of each pipeline stage, in order; options.rank is not read. Errors as
/// plan_rank's.
Result<std::vector<RankPlan>> plan_stages(const config::JobConfig& job, PlanOptions options);
/// Parameters and operations of all stages together, and the memory of the one that takes the most.
RankPlan whole_plan(const std::vector<RankPlan>& stages);

}  // namespace sortie::trainer
