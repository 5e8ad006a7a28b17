// The cost of a rank of a training job, found by letting it train on the meta device: the real
// model declares its parameters, the real graph and optimizer take a step, and the real allocator
// counts. There is no second description of a model, an op or a kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/parallel/counting.h"
#include "trainer/planning/fp8_rules.h"
#include "trainer/planning/memory_use.h"

namespace sortie::trainer {

struct ParameterCount {
  std::int64_t total = 0;    // without padding and state
  std::int64_t active = 0;   // of the total, those that one token uses: top k of the experts
  std::int64_t trained = 0;  // of the total
};
/// Counts the whole parameters that a model has declared, including those that [lora] added. Frozen
/// ones are not trained.
ParameterCount count_parameters(const ParameterStore& store);

struct PlanOptions {
  std::int64_t micro_batch_size = 1;  // sequences
  std::int64_t world_size = 1;        // ranks of the job
  int rank = 0;                       // the rank to plan
  DType dtype = DType::f32;           // of products
  int threads = 1;                    // of the rank; kernels have a workspace per thread
  bool gpu = false;                   // whether the rank computes on a GPU
};

struct RankPlan {
  ParameterCount parameters;
  /// Floating-point operations per trained token. Per weight that it is multiplied with: 2 forward,
  /// 2 if gradients flow through the product, 2 if the weight has a gradient. Per key that it sees
  /// in a layer, on average over the sequence: 2 H (D + Dv), and twice that backward. Ignores
  /// recomputation, and that documents hide keys.
  double flop_per_token = 0.0;
  /// On a CPU, kernel workspaces and packed weights are those that oneDNN reports for this machine.
  /// If its CPU has no bf16 products, bf16 plans include no kernel workspaces. On a GPU, they are
  /// those of ops/cuda; driver and NCCL are constants, the former measured on an H200, the latter
  /// assumed.
  MemoryUse memory;
  /// Payload bytes that the rank sends in a step.
  SentBytes sent;
  /// The fraction of a step in which the stages of a pipeline wait for each other, assuming that
  /// all of its runs take equally long (parallel/schedule.h).
  double bubble = 0.0;
  Bf16Products in_bf16;  // if the job asks for FP8
};

/// Plans one rank; its replicas have the same plan. Parameters and operations are those of its
/// stage. Takes time in proportion to the number of parameter tensors (some hundredths of a second
/// for a model of 8e9 weights in 32 layers) and negligible memory. Sets the number of OpenMP
/// threads, as any ExecutionContext does. ErrorCode::config for a pattern that matches no
/// parameter, for sizes that are allowed separately but absurd together, and if no parameter is
/// left to train.
Result<RankPlan> plan_rank(const config::JobConfig& job, const PlanOptions& options);

/// Plans the first rank of each pipeline stage, in order. Ignores options.rank. Errors like
/// plan_rank().
Result<std::vector<RankPlan>> plan_stages(const config::JobConfig& job, PlanOptions options);
/// Returns the plan of the stage that needs the most memory, with the parameters, operations and
/// bf16 products of all stages together.
RankPlan whole_plan(const std::vector<RankPlan>& stages);

}  // namespace sortie::trainer
