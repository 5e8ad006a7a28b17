// Tests of what `sortie-train bench step` measures.
#include <doctest/doctest.h>

#include "tests/support/tiny_training.h"
#include "trainer/bench/step.h"
#include "trainer/planning/rank_plan.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

Result<StepSeconds> measured(const config::JobConfig& job, const StepBench& bench) {
  RankContext rank;
  rank.compute = test::compute_device();
  return bench_step(job, rank, cpu_facts(), DType::f32, bench);
}

}  // namespace

TEST_CASE("steps of a job's model are measured, whatever files and ranks the job has") {
  config::JobConfig job = test::tiny_job();
  job.model.num_layers = 3;
  job.topology.tensor_parallel_size = 8;  // for 8 ranks; here is only one
  job.topology.global_batch_size = 512;
  job.trainer.save_dir = "/nowhere/checkpoints";
  job.trainer.load_weights_from = "/nowhere/weights";
  job.data.data_prefixes = {"/nowhere/tokens"};
  const auto found = measured(job, {.micro_batch_sizes = {1, 8}, .seconds = 0.1});
  REQUIRE_MESSAGE(found, (found ? "" : found.error().message));
  REQUIRE(found->passes.size() == 2);
  CHECK(found->layers == 3);
  CHECK(found->sequence_length == job.model.sequence_length);
  CHECK(found->passes[0].micro_batch_size == 1);
  CHECK(found->passes[1].micro_batch_size == 8);
  CHECK(found->passes[0].seconds > 0);
  CHECK(found->passes[1].seconds > 0);
  CHECK(found->update >= 0);
  // Operations are those of the plan for as many tokens.
  job.topology = {};
  const auto plan = plan_rank(job, {});
  REQUIRE(plan);
  CHECK(found->trained == plan->parameters.trained);
  CHECK(found->passes[1].flop == doctest::Approx(8 * plan->flop_per_token * 19));
}

TEST_CASE("a part of the layers stands for a model that is too much for one rank") {
  config::JobConfig job = test::tiny_job();
  job.model.num_layers = 1000;
  const auto found = measured(job, {.layers = 2, .micro_batch_sizes = {2}, .seconds = 0.05});
  REQUIRE_MESSAGE(found, (found ? "" : found.error().message));
  CHECK(found->layers == 2);
  job.model.num_layers = 2;
  const auto plan = plan_rank(job, {});
  REQUIRE(plan);
  CHECK(found->trained == plan->parameters.trained);
}
