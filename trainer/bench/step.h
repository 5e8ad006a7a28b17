// Measures the training steps of a job's model on a single rank, without the influence of other
// ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/loop/rank_context.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

struct StepBench {
  std::int64_t layers = 0;                                  // of the model; 0 = as in the job
  std::vector<std::int64_t> micro_batch_sizes = {1, 2, 4};  // sequences
  double seconds = 2.0;                                     // for the steps of a size, about
};

struct StepSeconds {
  struct Pass {  // forward and backward of one micro-batch
    std::int64_t micro_batch_size = 0;
    double seconds = 0.0, flop = 0.0;  // flop as counted by RankPlan::flop_per_token
  };
  std::vector<Pass> passes;
  double update = 0.0;           // per step: gradient norm, optimizer, clearing
  std::int64_t trained = 0;      // parameters that the update changes
  std::int64_t layers = 0;       // of the measured model
  std::int64_t sequence_length;  // tokens
};

/// Trains `job`'s model on random tokens on a single rank, with micro-batches of each size and
/// without recomputation. Reads and writes no file. Takes the fastest of the steps with one and
/// with three micro-batches: their difference gives the time of a pass, and the rest of a step is
/// the update. Returns the errors of plan_rank() and Trainer::start().
Result<StepSeconds> bench_step(config::JobConfig job, const RankContext& rank, const CpuFacts& cpu,
                               DType precision, const StepBench& bench);

}  // namespace sortie::trainer
