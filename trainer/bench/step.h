// What the steps of a job's model take on one rank that is alone: what no other rank can make
// shorter or longer.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/loop/rank_context.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

struct StepBench {
  std::int64_t layers = 0;                                  // of the model; 0: those of the job
  std::vector<std::int64_t> micro_batch_sizes = {1, 2, 4};  // sequences
  double seconds = 2.0;                                     // of steps of a size, about
};

struct StepSeconds {
  struct Pass {  // forward and backward of one micro-batch
    std::int64_t micro_batch_size = 0;
    double seconds = 0.0, flop = 0.0;  // flop as RankPlan::flop_per_token counts
  };
  std::vector<Pass> passes;
  double update = 0.0;           // of a step: gradient norm, optimizer, clearing
  std::int64_t trained = 0;      // parameters that it updates
  std::int64_t layers = 0;       // that the model had
  std::int64_t sequence_length;  // tokens
};

/// Trains `job`'s model on random tokens, with micro-batches of each size and no topology but one
/// rank, without recomputation; no file is read or written. Of steps with one and with three
/// micro-batches the fastest counts: the difference is the passes', the rest the update's. Errors
/// as plan_rank's and Trainer::start's.
Result<StepSeconds> bench_step(config::JobConfig job, const RankContext& rank, const CpuFacts& cpu,
                               DType precision, const StepBench& bench);

}  // namespace sortie::trainer
