// Tests of tensor parallelism with everything that changes how a step is computed, with deferred
// ops and delayed messages, and with checkpoints in other layouts.
#include <filesystem>

#include "tests/support/bf16.h"
#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/hf/import.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig modes_job(const std::string& architecture = "llama") {
  const bool mixture = architecture == "deepseek-v3" || architecture == "mixtral";
  config::JobConfig job = mixture ? mixture_job(architecture) : tiny_job(architecture);
  job.model.sequence_length = 20;
  job.optimizer.eps = 1e-4;  // keeps small moments from amplifying rounding differences
  return job;
}

config::JobConfig in_group(config::JobConfig job, int size, bool sequence = true) {
  job.topology.tensor_parallel_size = size;
  job.topology.sequence_parallel = sequence;
  return job;
}

/// Compares `ranks` ranks in groups of `size`, with and without shared rows, with one process.
void check_modes(const config::JobConfig& job, int size, int ranks, int steps,
                 const LayoutExtras& extras = {}) {
  const LayoutRun alone = run_layout(job, 1, steps, DType::f32, {}, extras);
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    check_equal(run_layout(in_group(job, size, sequence), ranks, steps, DType::f32, {}, extras),
                alone);
  }
}

TEST_CASE("groups in replicas with recomputation, accumulation and masked targets") {
  for (const char* architecture : {"llama", "gpt2", "deepseek-v3", "mixtral"}) {
    if (!sortie::test::every_case() && architecture != std::string("llama")) continue;
    CAPTURE(architecture);
    config::JobConfig job = modes_job(architecture);
    job.model.weight_tying = false;
    job.model.residual_dropout = 0.1;
    job.topology.activation_checkpointing_type = "every_layer";
    job.topology.batch_rampup_start = 4;
    job.topology.batch_rampup_increment = 4;
    job.topology.batch_rampup_samples = 12;
    check_modes(job, 2, 4, 5, {.masked = true});
  }
}

TEST_CASE("groups train low-rank updates, and leave frozen layers alone") {
  config::JobConfig lora = modes_job("qwen2");
  lora.lora.rank = 3;  // not divisible by two ranks
  lora.lora.modules = {"*"};
  check_modes(lora, 2, 2, 6);
  if (sortie::test::every_case()) check_modes(lora, 4, 4, 6);
  config::JobConfig latent = modes_job("deepseek-v3");
  latent.lora.rank = 3;
  check_modes(latent, 2, 2, 6);
  config::JobConfig frozen = modes_job();
  frozen.optimizer.freeze = {"embedding.weight", "layers.0.*"};
  frozen.model.weight_tying = false;
  check_modes(frozen, 2, 2, 6);
}

TEST_CASE("three ranks share a vocabulary that is no multiple of three, eight one of few tokens") {
  config::JobConfig job = modes_job();
  job.model.num_attention_heads = 6;
  job.model.attention_num_kv_heads = 3;
  job.model.ffn_hidden_size = 96;
  job.model.sequence_length = 21;
  check_modes(job, 3, 3, 3);
  job = modes_job("gpt2");  // 8 vocabulary rows per rank: one rank has only padding
  job.model.num_attention_heads = 8;
  job.model.attention_num_kv_heads = 0;
  job.model.sequence_length = 24;
  check_modes(job, 8, 8, 3);
}

TEST_CASE("groups in bf16 follow one process in bf16") {
  if (skips_bf16()) return;
  const config::JobConfig job = modes_job();
  const LayoutRun alone = run_layout(job, 1, 10, DType::bf16);
  for (const bool sequence : {false, true}) {
    const LayoutRun run = run_layout(in_group(job, 2, sequence), 2, 10, DType::bf16);
    CHECK(run.wrong == "");
    for (std::size_t i = 0; i < run.losses.size(); ++i)
      CHECK(run.losses[i] == doctest::Approx(alone.losses[i]).epsilon(5e-3));
  }
}

TEST_CASE("a group's steps are the same bits with messages that are late and ops that are late") {
  for (const char* architecture : {"llama", "deepseek-v3"}) {
    config::JobConfig job = in_group(modes_job(architecture), 2);
    job.model.attention_dropout = 0.1;
    job.topology.activation_checkpointing_type = "every_layer";
    const LayoutRun once = run_layout(job, 4, 2);
    const auto check_same = [&](const LayoutRun& again) {
      CHECK(again.wrong == "");
      CHECK(again.losses == once.losses);
      CHECK(again.norms == once.norms);
      CHECK(again.weights == once.weights);
    };
    check_same(run_layout(job, 4, 2, DType::f32, {std::chrono::microseconds(200), 5}));
    if (device().kind != DeviceKind::cpu) continue;
    check_same(
        run_layout(job, 4, 2, DType::f32, {std::chrono::microseconds(100), 6}, {.late_seed = 7}));
    check_same(run_layout(in_group(job, 2), 4, 2, DType::f32, {}, {.late_seed = 70}));
  }
}

TEST_CASE("a group's weight gradients are computed beside its exchanges") {
  for (const bool sequence : {false, true}) {
    for (const bool recomputes : {false, true}) {
      CAPTURE(sequence);
      CAPTURE(recomputes);
      config::JobConfig job = in_group(modes_job(), 2, sequence);
      if (recomputes) job.topology.activation_checkpointing_type = "every_layer";
      const std::vector<std::int64_t> beside =
          polls_beside_exchanges(job, [](ParameterStore& store) { return store.tensor_group(); });
      // Four products per layer: query, key and value; output; gate and up; down. With
      // recomputation and shared rows, the first one does not count: a recomputed layer ends before
      // the next exchange, for which this product would have to wait. The tape polls after each
      // product, and on the CPU products themselves poll, too.
      const std::int64_t products = (sequence && recomputes ? 3 : 4) * job.model.num_layers *
                                    job.topology.global_batch_size / job.topology.micro_batch_size;
      const std::int64_t each = device().kind == DeviceKind::cuda ? 1 : 2;
      REQUIRE(beside.size() == 2);
      for (const std::int64_t polls : beside) CHECK(polls == each * products);
    }
  }
}

TEST_CASE(
    "a planned rank of a group takes what a real one takes, and tells the whole model's work") {
  for (const char* architecture : {"llama", "deepseek-v3"}) {
    config::JobConfig whole = modes_job(architecture);
    whole.model.hidden_size = 96;
    const auto plan_of = [&](const config::JobConfig& job, std::int64_t ranks) {
      const auto plan = plan_rank(job, {.micro_batch_size = 2, .world_size = ranks});
      REQUIRE(plan);
      return *plan;
    };
    const RankPlan alone = plan_of(whole, 1);
    for (const bool sequence : {false, true}) {
      CAPTURE(architecture);
      CAPTURE(sequence);
      const config::JobConfig job = in_group(whole, 2, sequence);
      MemoryUse measured;
      run_thread_ranks(2, [&](Communicator& world) {
        TinyTraining training(job, world);
        training.losses(2);
        if (world.rank() == 0)
          measured =
              tensor_memory(training.trainer->store(), training.trainer->context().allocator());
      });
      const RankPlan plan = plan_of(job, 2);
      CHECK(plan.flop_per_token == alone.flop_per_token);
      CHECK(plan.parameters.total == alone.parameters.total);
      CHECK(plan.memory.weights == measured.weights);
      CHECK(plan.memory.gradients == measured.gradients);
      CHECK(plan.memory.optimizer == measured.optimizer);
      CHECK(plan.memory.packed == measured.packed);
      CHECK(plan.memory.activations ==
            doctest::Approx(static_cast<double>(measured.activations)).epsilon(0.02));
      CHECK(plan.memory.weights < alone.memory.weights * 3 / 4);
    }
  }
}

TEST_CASE("models of Hugging Face folders go on in a group as in one process") {
  for (const char* name : {"llama-a", "qwen3-a", "gpt2-a", "gpt-neo-a", "gpt-neo-x-a", "mistral-a",
                           "qwen2-a", "mixtral-a", "qwen3-moe-a", "deepseek-v3-a"}) {
    if (!sortie::test::every_case() && name != std::string("qwen3-a")) continue;
    CAPTURE(name);
    const sortie::test::ScopedTempDir dir;
    const std::filesystem::path fixture = std::filesystem::path(SORTIE_TEST_DATA "/hf") / name;
    const auto imported = import_hf(fixture, dir.str("imported"));
    REQUIRE_MESSAGE(imported, (imported ? "" : imported.error().message));
    config::JobConfig job = modes_job();
    job.model = open_model(dir.str("imported"), {}).value().config;
    job.model.sequence_length = 20;
    job.model.precision = "f32";
    job.trainer.load_dir = dir.str("imported");
    REQUIRE(config::check_layout(in_group(job, 2)).empty());
    check_modes(job, 2, 2, 3);
  }
}

TEST_CASE("a checkpoint of one group size is that of every other") {
  struct Layouts {
    int from, to;
    const char* architecture;
  };
  std::vector<Layouts> pairs = {{1, 4, "llama"}, {4, 2, "llama"}, {2, 1, "deepseek-v3"}};
  if (sortie::test::every_case())
    pairs.insert(pairs.end(), {{2, 4, "qwen3"}, {4, 1, "gpt2"}, {1, 2, "mixtral"}});
  for (const auto& [from, to, architecture] : pairs) {
    CAPTURE(from);
    CAPTURE(to);
    const sortie::test::ScopedTempDir dir;
    config::JobConfig job = modes_job(architecture);
    job.trainer.save_dir = dir.str("checkpoints");
    job.trainer.train_iterations = 3;
    const WholeTensors saved = whole_state(in_group(job, from, from > 1), from, /*trains=*/true);
    CHECK(saved.size() > 10);
    CHECK(whole_state(in_group(job, to, false), to, /*trains=*/false) == saved);
  }
}

}  // namespace
}  // namespace sortie::trainer::test
