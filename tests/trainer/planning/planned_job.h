// Helpers for tests of optimizers' plans: a model of some million parameters, and the plan of a
// rank.
#pragma once

#include <doctest/doctest.h>

#include "tests/support/tiny_training.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer::test {

inline config::JobConfig planned_job() {
  config::JobConfig job = tiny_job();
  job.model.vocab_size = 5003;
  job.model.hidden_size = 192;
  job.model.num_layers = 4;
  job.model.num_attention_heads = 8;
  job.model.ffn_hidden_size = 512;
  job.model.sequence_length = 64;
  return job;
}

inline RankPlan planned(const config::JobConfig& job, std::int64_t ranks, DType dtype,
                        int rank = 0) {
  auto plan = plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size,
                              .world_size = ranks,
                              .rank = rank,
                              .dtype = dtype});
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  return *std::move(plan);
}

}  // namespace sortie::trainer::test
