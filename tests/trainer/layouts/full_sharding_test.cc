// Compares full sharding, in which each replica keeps a share of weights, gradients and optimizer
// state and gathers weights layer by layer, with one process and with whole replicas.
#include "tests/support/bf16.h"
#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig fully_sharded(config::JobConfig job) {
  job.topology.parameter_sharding = "full";
  return job;
}

/// Returns the job with one micro-batch per step and a separate head: each gradient is summed over
/// the replicas once, as without sharding.
config::JobConfig one_micro_batch(config::JobConfig job, int ranks) {
  job.model.weight_tying = false;
  job.topology.micro_batch_size = 2;
  job.topology.gradient_accumulation_steps = 1;
  job.topology.global_batch_size = 2 * ranks;
  return job;
}

/// Checks that losses, weights and gradients have the bits of replicas that keep everything.
void check_bits_of_whole(const config::JobConfig& job, int ranks, int steps, DType precision,
                         const ThreadRankOptions& delays = {}) {
  CAPTURE(ranks);
  CAPTURE(job.model.architecture);
  const LayoutRun whole = run_layout(job, ranks, steps, precision);
  const LayoutRun full = run_layout(fully_sharded(job), ranks, steps, precision, delays);
  CHECK(full.wrong == "");
  CHECK(full.losses == whole.losses);
  CHECK(full.weights == whole.weights);
  CHECK(full.gradients == whole.gradients);
}

TEST_CASE("full sharding gives the bits of whole replicas where gradients are summed once") {
  check_bits_of_whole(one_micro_batch(tiny_job(), 2), 2, 20, DType::f32);
  check_bits_of_whole(one_micro_batch(tiny_job(), 4), 4, 6, narrow_type());
  config::JobConfig deep = one_micro_batch(tiny_job("gpt-neo-x"), 3);
  deep.model.num_layers = 5;
  deep.topology.activation_checkpointing_type = "every_layer";
  check_bits_of_whole(deep, 3, 3, narrow_type());
  check_bits_of_whole(one_micro_batch(mixture_job("mixtral"), 2), 2, 3, DType::f32);
}

TEST_CASE("full sharding trains as one process does: 20 steps with accumulation") {
  config::JobConfig job = tiny_job();
  job.model.num_layers = 3;
  check_equal(run_layout(fully_sharded(job), 2, 20), run_layout(job, 1, 20));
}

TEST_CASE("families, fine-tuning, dropout, masks and growing batches are those of one process") {
  config::JobConfig lora = tiny_job();
  lora.lora.rank = 4;
  lora.lora.modules = {"*.attention.*", "*.mlp.down"};
  config::JobConfig frozen = tiny_job("gpt2");
  frozen.optimizer.freeze = {"embedding.*", "positions.*", "layers.0.*"};
  frozen.model.residual_dropout = frozen.model.attention_dropout = 0.1;
  frozen.topology.activation_checkpointing_type = "every_layer";
  config::JobConfig untied = tiny_job();
  untied.model.weight_tying = false;
  config::JobConfig growing = tiny_job();
  growing.topology.batch_rampup_start = 4;
  growing.topology.batch_rampup_increment = 4;
  growing.topology.batch_rampup_samples = 24;
  for (config::JobConfig job :
       {lora, frozen, untied, growing, mixture_job("deepseek-v3"), mixture_job("mixtral")}) {
    job.optimizer.eps = 1e-4;  // keeps small moments from amplifying rounding differences
    CAPTURE(job.model.architecture);
    const int steps = sortie::test::every_case() ? 20 : 4;
    LayoutExtras extras;
    extras.masked = !job.model.weight_tying;
    check_equal(run_layout(fully_sharded(job), 2, steps, DType::f32, {}, extras),
                run_layout(job, 1, steps, DType::f32, {}, extras));
  }
}

TEST_CASE("bf16 trains as one process does, to the rounding of its sums") {
  const config::JobConfig job = tiny_job();
  const LayoutRun full = run_layout(fully_sharded(job), 4, 20, narrow_type());
  const LayoutRun alone = run_layout(job, 1, 20, narrow_type());
  for (std::size_t i = 0; i < alone.losses.size(); ++i)
    CHECK(full.losses[i] == doctest::Approx(alone.losses[i]).epsilon(5e-3));
}

TEST_CASE("full sharding goes with tensor, sequence and pipeline parallelism") {
  config::JobConfig job = tiny_job();
  job.model.num_layers = 4;
  job.model.sequence_length = 20;
  job.optimizer.eps = 1e-4;
  const LayoutRun alone = run_layout(job, 1, 4);
  config::JobConfig tensor = fully_sharded(job);
  tensor.topology.tensor_parallel_size = 2;
  tensor.topology.sequence_parallel = true;
  check_equal(run_layout(tensor, 4, 4), alone);
  config::JobConfig stages = fully_sharded(job);
  stages.topology.pipeline_parallel_size = 2;
  stages.topology.pipeline_interleave = 2;
  check_equal(run_layout(stages, 4, 4), alone);
  config::JobConfig all = fully_sharded(job);
  all.topology.tensor_parallel_size = 2;
  all.topology.sequence_parallel = true;
  all.topology.pipeline_parallel_size = 2;
  check_equal(run_layout(all, 8, 4), alone);
}

TEST_CASE("a fully sharded run gives the same bits twice, and however long messages take") {
  const config::JobConfig job = fully_sharded(tiny_job());
  const LayoutRun first = run_layout(job, 4, 4, narrow_type());
  for (std::uint64_t seed = 1; seed <= (sortie::test::every_case() ? 10 : 2); ++seed) {
    const LayoutRun late =
        run_layout(job, 4, 4, narrow_type(), {std::chrono::microseconds(300), seed});
    CHECK(first.losses == late.losses);
    CHECK(first.norms == late.norms);
    CHECK(first.weights == late.weights);
  }
}

TEST_CASE("ops that run late find gathered weights, and gathers wait for what still reads them") {
  if (device().kind != DeviceKind::cpu) return;  // only CPU contexts can defer ops
  config::JobConfig job = fully_sharded(tiny_job());
  job.model.num_layers = 3;
  for (const DType precision : {DType::f32, narrow_type()}) {
    const LayoutRun expected = run_layout(job, 2, 4, precision);
    for (std::uint64_t seed = 1; seed <= (sortie::test::every_case() ? 10 : 3); ++seed) {
      CAPTURE(seed);
      LayoutExtras extras;
      extras.late_seed = 100 * seed;
      const LayoutRun late = run_layout(job, 2, 4, precision, {}, extras);
      CHECK(late.losses == expected.losses);
      CHECK(late.weights == expected.weights);
    }
  }
}

TEST_CASE("from the second step on weights are on their way before they are used") {
  config::JobConfig job = fully_sharded(one_micro_batch(tiny_job(), 2));
  job.model.num_layers = 4;
  run_thread_ranks(2, [&](Communicator& world) {
    TinyTraining training(job, world);
    const LayerGatherer& gatherer = *training.trainer->passes().gatherer();
    (void)training.losses(1);
    const std::int64_t gathered = gatherer.gathered(), ahead = gatherer.used_ahead();
    (void)training.losses(3);
    training.trainer->store().await_values();
    // Each step gathers the embedding, four layers, the final norm and the head, and three layers
    // again for the backward pass. The first gather of the next step has begun, but is not used
    // yet.
    SORTIE_CHECK(gatherer.gathered() - gathered == 3 * 10, "{} gathers",
                 gatherer.gathered() - gathered);
    SORTIE_CHECK(gatherer.used_ahead() - ahead == 3 * 10, "{} of {} ahead",
                 gatherer.used_ahead() - ahead, gatherer.gathered() - gathered);
  });
}

TEST_CASE("validation has the loss of one process, with passes that replicas do not share evenly") {
  config::JobConfig job = one_micro_batch(tiny_job(), 3);
  job.trainer.eval_samples = 8;  // four passes on three replicas
  const auto alone = make_single_communicator();
  config::JobConfig single = job;
  single.topology.gradient_accumulation_steps = 3;
  const double expected = TinyTraining(single, *alone).trainer->evaluate()->loss;
  std::mutex mutex;
  std::vector<double> losses;
  run_thread_ranks(3, [&](Communicator& world) {
    TinyTraining training(fully_sharded(job), world);
    const auto first = training.trainer->evaluate();
    (void)training.losses(2);
    const auto later = training.trainer->evaluate();
    SORTIE_CHECK(first.has_value() && later.has_value(), "validation failed");
    const std::lock_guard lock(mutex);
    losses.push_back(first->loss);
    CHECK(later->loss < first->loss);
  });
  for (const double loss : losses) CHECK(loss == expected);
}

}  // namespace
}  // namespace sortie::trainer::test
