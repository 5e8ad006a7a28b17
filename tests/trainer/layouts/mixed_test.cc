// Compares tensor, sequence, pipeline and data parallelism together with one process and with each
// other.
#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "tests/trainer/layouts/layout_runs.h"

namespace sortie::trainer::test {
namespace {

struct Mix {
  int tensor = 1, pipeline = 1, interleave = 1, replicas = 1;
  bool sequence = false, sharded = false;
  int ranks() const { return tensor * pipeline * replicas; }
};

config::JobConfig mixed_job(const std::string& architecture) {
  const bool mixture = architecture == "deepseek-v3" || architecture == "mixtral";
  config::JobConfig job = mixture ? mixture_job(architecture) : tiny_job("llama");
  job.model.architecture = architecture;
  if (architecture == "gpt2") job.model.attention_num_kv_heads = 0;
  job.model.num_layers = 4;
  job.model.sequence_length = 20;
  job.optimizer.eps = 1e-4;  // keeps small moments from amplifying rounding differences
  return job;
}

config::JobConfig in_layout(config::JobConfig job, const Mix& mix) {
  job.topology.tensor_parallel_size = mix.tensor;
  job.topology.sequence_parallel = mix.sequence;
  job.topology.pipeline_parallel_size = mix.pipeline;
  job.topology.pipeline_interleave = mix.interleave;
  if (mix.sharded) job.topology.parameter_sharding = "optimizer";
  return job;
}

void check_mix(const config::JobConfig& job, const Mix& mix, int steps,
               const LayoutExtras& extras = {}) {
  CAPTURE(job.model.architecture);
  CAPTURE(mix.tensor);
  CAPTURE(mix.pipeline);
  CAPTURE(mix.sequence);
  const LayoutRun alone = run_layout(job, 1, steps, DType::f32, {}, extras);
  check_equal(run_layout(in_layout(job, mix), mix.ranks(), steps, DType::f32, {}, extras), alone);
}

const Mix kEight{.tensor = 2, .pipeline = 2, .replicas = 2, .sequence = true};
const Mix kShardedEight{
    .tensor = 2, .pipeline = 2, .replicas = 2, .sequence = true, .sharded = true};

TEST_CASE("tensor 2 x pipeline 2 x replicas 2 trains as one process does") {
  check_mix(mixed_job("llama"), kEight, 20);
  config::JobConfig masked_out = mixed_job("gpt2");
  masked_out.model.weight_tying = true;
  masked_out.topology.activation_checkpointing_type = "every_layer";
  masked_out.model.residual_dropout = masked_out.model.attention_dropout = 0.1;
  check_mix(masked_out, {.tensor = 2, .pipeline = 2, .interleave = 2}, 3);
  check_mix(mixed_job("deepseek-v3"), {.tensor = 2, .pipeline = 2, .sequence = true}, 2);
  check_mix(mixed_job("mixtral"), {.tensor = 2, .pipeline = 2, .sequence = true}, 2);
  // Every stage gets the documents of packed sequences.
  for (const char* family : {"gpt2", "deepseek-v3"})
    check_mix(mixed_job(family), {.tensor = 2, .pipeline = 2, .interleave = 2}, 2,
              {.packed = true});
  if (!sortie::test::every_case()) return;
  for (const char* family : {"llama", "gpt2", "mixtral", "deepseek-v3"})
    for (const bool sequence : {false, true}) {
      check_mix(mixed_job(family), {2, 2, 2, 2, sequence, true}, 3);
      check_mix(mixed_job(family), {2, 4, 1, 2, sequence}, 3);
      check_mix(mixed_job(family), {4, 2, 1, 1, sequence}, 3);
    }
}

TEST_CASE("a layout gives the same bits twice, and however long messages take") {
  const config::JobConfig job = in_layout(mixed_job("llama"), kEight);
  const LayoutRun first = run_layout(job, 8, 3), second = run_layout(job, 8, 3);
  const LayoutRun late =
      run_layout(job, 8, 3, DType::f32, {.max_delay = std::chrono::microseconds(300), .seed = 7});
  for (const LayoutRun* other : {&second, &late}) check_same_course(*other, first);
}

TEST_CASE("a sharded optimizer gives the weights of a whole one in any layout") {
  config::JobConfig job = in_layout(mixed_job("llama"), kEight);
  job.model.weight_tying = true;
  const LayoutRun whole = run_layout(job, 8, 3);
  job.topology.parameter_sharding = "optimizer";
  const LayoutRun sharded = run_layout(job, 8, 3);
  CHECK(sharded.wrong == "");
  CHECK(sharded.losses == whole.losses);
  CHECK(sharded.weights == whole.weights);
  CHECK(sharded.gradients == whole.gradients);
}

TEST_CASE("checkpoints go from any layout to any other, to the bit") {
  const Mix layouts[] = {{}, {.tensor = 2}, {.pipeline = 2}, {.replicas = 2}, kShardedEight};
  for (const Mix& from : layouts)
    for (const Mix& to : layouts) {
      const bool chosen = from.sharded != to.sharded && (from.ranks() + to.ranks()) % 2 == 0;
      if (!sortie::test::every_case() && !chosen) continue;
      CAPTURE(from.ranks());
      CAPTURE(to.ranks());
      const sortie::test::ScopedTempDir folder;
      config::JobConfig job = mixed_job("llama");
      job.trainer.train_iterations = 2;
      job.trainer.save_dir = (folder.path() / "saves").string();
      const WholeTensors saved = whole_state(in_layout(job, from), from.ranks(), true);
      CHECK(saved == whole_state(in_layout(job, to), to.ranks(), false));
    }
}

}  // namespace
}  // namespace sortie::trainer::test
