// Tests of training with linear layers in FP8, which only GPUs do.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "common/config/architectures.h"
#include "tests/support/every_case.h"
#include "tests/support/state_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "trainer/models/families.h"
#include "trainer/planning/fp8_rules.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// Returns a job with layers whose sizes are multiples of 16, and micro-batches of 32 tokens. With
/// this learning rate, differences in rounding do not grow within a few steps.
config::JobConfig fp8_job(const std::string& architecture) {
  config::JobConfig job = family_job(architecture);
  const config::Architecture& row = config::architecture_of(job.model);
  job.model.hidden_size = 64;
  job.model.ffn_hidden_size = 96;
  job.model.sequence_length = 16;
  if (row.mixture) {
    job.model.moe.ffn_hidden_size = 32;
    job.model.head_dim = row.latent ? 0 : 16;
  }
  if (row.latent)
    job.model.mla = {.q_lora_rank = 32,
                     .kv_lora_rank = 32,
                     .qk_nope_head_dim = 16,
                     .qk_rope_head_dim = 16,
                     .v_head_dim = 16};
  job.topology.global_batch_size = 4;
  job.topology.micro_batch_size = 2;
  job.model.precision = "fp8";
  job.learning_rate_scheduler.learning_rate = 2e-3;
  return job;
}

struct Fp8Run {
  std::vector<double> losses, norms;
  std::string note;
  std::int64_t flop = 0;
};

Fp8Run fp8_run(const config::JobConfig& job, int steps) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::bf16);
  Fp8Run run;
  for (int i = 0; i < steps; ++i) {
    const auto report = training.trainer->step();
    SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
    run.losses.push_back(report->loss);
    run.norms.push_back(report->grad_norm);
  }
  run.note = bf16_products(training.trainer->store()).text();
  run.flop = training.trainer->context().flop();
  return run;
}

Fp8Run bf16_run(config::JobConfig job, int steps) {
  job.model.precision = "bf16";
  return fp8_run(job, steps);
}

}  // namespace

TEST_CASE("on a GPU: FP8 follows bf16, and a rerun has its bits" *
          doctest::skip(no_gpu_is_tested())) {
  for (const Family& family : families()) {
    const std::string name(family.name);
    if (!sortie::test::every_case() && name != "llama" && name != "gpt2" && name != "deepseek-v3")
      continue;
    CAPTURE(name);
    const config::JobConfig job = fp8_job(name);
    const int steps = sortie::test::every_case() ? 10 : 4;
    const Fp8Run narrow = fp8_run(job, steps), wide = bf16_run(job, steps);
    CHECK(narrow.losses != wide.losses);
    CHECK(narrow.losses.back() < narrow.losses.front());
    CHECK(narrow.flop == wide.flop);
    for (std::size_t i = 0; i < wide.losses.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(narrow.losses[i] - wide.losses[i]) <= 0.03 * wide.losses[i]);
    }
    // Only the norms of the first step, before the two runs diverge.
    CHECK(std::abs(narrow.norms[0] - wide.norms[0]) <= 0.05 * wide.norms[0]);
    CHECK(narrow.note == (config::architecture_of(job.model).mixture
                              ? "precision fp8: routed experts multiply in bf16"
                              : ""));
    const Fp8Run again = fp8_run(job, steps);
    CHECK(again.losses == narrow.losses);
    CHECK(again.norms == narrow.norms);
  }
}

TEST_CASE("on a GPU: delayed scaling follows bf16, and an evaluation changes none of its bits" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = fp8_job("llama");
  const int steps = 6;
  const Fp8Run wide = bf16_run(job, steps), current = fp8_run(job, steps);
  job.model.fp8_scaling = "delayed";
  const Fp8Run delayed = fp8_run(job, steps);
  CHECK(delayed.losses[0] == current.losses[0]);  // there is no history yet
  CHECK(delayed.losses != current.losses);
  for (std::size_t i = 0; i < wide.losses.size(); ++i)
    CHECK(std::abs(delayed.losses[i] - wide.losses[i]) <= 0.03 * wide.losses[i]);
  CHECK(fp8_run(job, steps).losses == delayed.losses);

  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::bf16);
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    const auto evaluated = training.trainer->evaluate();
    REQUIRE(evaluated);
    const std::vector<double> next = training.losses(1);
    losses.push_back(next[0]);
  }
  CHECK(losses == delayed.losses);
}

TEST_CASE("on a GPU: recomputation and kept casts change no bit of a training in FP8" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = fp8_job("qwen3");  // three linear layers share an input
  const Fp8Run usual = fp8_run(job, 3);
  job.topology.activation_checkpointing_type = "every_layer";
  CHECK(fp8_run(job, 3).losses == usual.losses);
  // With one micro-batch per step, each pass casts weights for itself.
  job = fp8_job("qwen3");
  job.topology.global_batch_size = 2;
  const Fp8Run one = fp8_run(job, 3);
  job.topology.activation_checkpointing_type = "every_layer";
  CHECK(fp8_run(job, 3).losses == one.losses);
}

TEST_CASE("on a GPU: what is frozen, low-rank or of odd size trains beside FP8" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig lora = fp8_job("llama");
  lora.lora.rank = 16;
  lora.lora.modules = {"*.attention.*", "*.mlp.down"};
  config::JobConfig frozen = fp8_job("gpt2");
  frozen.optimizer.freeze = {"embedding.*", "positions.*", "layers.0.*", "layers.1.mlp.up.weight"};
  config::JobConfig odd = fp8_job("llama");
  odd.model.ffn_hidden_size = 72;
  for (const config::JobConfig& job : {lora, frozen, odd}) {
    const Fp8Run narrow = fp8_run(job, 3), wide = bf16_run(job, 3);
    CHECK(narrow.losses != wide.losses);
    for (std::size_t i = 0; i < wide.losses.size(); ++i)
      CHECK(std::abs(narrow.losses[i] - wide.losses[i]) <= 0.03 * wide.losses[i]);
  }
  CHECK(fp8_run(odd, 1).note ==
        "precision fp8: layers.0.mlp.down.weight and 1 more multiply in bf16: rows and columns are "
        "not multiples of 16 (64 x 72)");
}

TEST_CASE("on a GPU: a run in FP8 is saved, and goes on with the same bits" *
          doctest::skip(no_gpu_is_tested())) {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = fp8_job("llama");
  SUBCASE("current scaling") {}
  SUBCASE("delayed scaling") {
    job.model.fp8_scaling = "delayed";
  }
  job.trainer.save_dir = dir.str("checkpoints");
  job.trainer.save_interval = 2;
  job.trainer.train_iterations = 6;
  const auto train = [&] {
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator, DType::bf16);
    REQUIRE(training.trainer->run_steps());
    std::vector<float> all = state_values(training.trainer->store());
    const Tensor& history = training.trainer->store().fp8_history();
    CHECK(history.defined() == (job.model.fp8_scaling == "delayed"));
    if (history.defined()) {
      const auto values = ops::copy_to_host<float>(training.trainer->context(), history);
      CHECK(values[5] > 0.0f);  // six steps
      CHECK(values[6] == 0.0f);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<float> whole = train();
  for (const char* step : {"step-00000004", "step-00000006"})
    std::filesystem::remove_all(dir.path() / "checkpoints" / step);
  CHECK(train() == whole);
}

TEST_CASE("on a GPU: bf16 and FP8 go on with each other's checkpoints" *
          doctest::skip(no_gpu_is_tested())) {
  const sortie::test::ScopedTempDir dir;
  std::vector<float> left;
  std::int64_t steps = 0;
  for (const auto& [precision, scaling] :
       {std::pair("bf16", "current"), std::pair("fp8", "delayed"), std::pair("bf16", "current"),
        std::pair("fp8", "current"), std::pair("fp8", "delayed")}) {
    CAPTURE(std::string(precision));
    CAPTURE(std::string(scaling));
    config::JobConfig job = fp8_job("llama");
    job.learning_rate_scheduler.learning_rate_decay_iters = 20;
    job.model.precision = precision;
    job.model.fp8_scaling = scaling;
    job.trainer.save_dir = dir.str("checkpoints");
    job.trainer.train_iterations = steps + 2;
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator, DType::bf16);
    CHECK(training.trainer->progress().step == steps);
    if (steps > 0) CHECK(state_values(training.trainer->store()) == left);
    REQUIRE(training.trainer->run_steps());
    left = state_values(training.trainer->store());
    steps += 2;
  }
}

TEST_CASE("rows that have no products in FP8 are refused at the start") {
  config::JobConfig job = fp8_job("llama");
  CHECK(check_fp8_rows(job, 2));
  CHECK(check_fp8_rows(job, 1));
  job.model.sequence_length = 24;
  CHECK(check_fp8_rows(job, 2));
  const auto refused = check_fp8_rows(job, 1);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::config);
  CHECK(refused.error().message ==
        "model.precision = \"fp8\": a micro-batch of 1 x 24 tokens gives each rank 24 rows to "
        "multiply, which has to be a multiple of 16; change topology.micro_batch_size or "
        "model.sequence_length, or use \"bf16\"");
  job.model.precision = "bf16";
  CHECK(check_fp8_rows(job, 1));
}
