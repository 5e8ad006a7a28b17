// Tests of context parallelism: ranks that share sequences train as one process does. Covers what
// depends on the position of a token, what ranks send each other, and what each rank holds a part
// of.
#include "tests/support/bf16.h"
#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/layouts/family_jobs.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/models/families.h"

namespace sortie::trainer::test {
namespace {

/// Returns a job with sequences that 2 and 4 ranks can share, in chunks of 5 tokens or more.
config::JobConfig long_job(const std::string& architecture) {
  return family_job(architecture, /*tokens=*/40);
}
config::JobConfig long_placed_job(const std::string& architecture) {
  return placed(long_job(architecture), /*window=*/7);
}

config::JobConfig sharing(config::JobConfig job, int ranks) {
  job.topology.context_parallel_size = ranks;
  return job;
}

void check_sharing(const config::JobConfig& job, const std::vector<int>& sizes, int steps,
                   const LayoutExtras& extras = {}, int replicas = 1) {
  const LayoutRun alone = run_layout(job, 1, steps, DType::f32, {}, extras);
  for (const int size : sizes) {
    CAPTURE(job.model.architecture);
    CAPTURE(size);
    check_equal(run_layout(sharing(job, size), size * replicas, steps, DType::f32, {}, extras),
                alone);
  }
}

TEST_CASE("sequences shared by 2 and 4 ranks train as on one process") {
  check_sharing(long_job("gpt2"), {2, 4}, 20);
  check_sharing(long_job("llama"), {2, 4}, 20);
}

TEST_CASE("dropout, windows and documents in shared sequences are those of one process") {
  for (const Family& family : families()) {
    const std::string name(family.name);
    if (!sortie::test::every_case() && name != "gpt-neo" && name != "qwen3" &&
        name != "deepseek-v3" && name != "mixtral")
      continue;
    check_sharing(long_placed_job(name), {2}, sortie::test::every_case() ? 20 : 3);
    check_sharing(long_placed_job(name), {4}, sortie::test::every_case() ? 20 : 2);
  }
}

TEST_CASE("packed documents in shared sequences are those of one process") {
  for (const char* name : {"gpt2", "qwen3", "deepseek-v3"}) {
    config::JobConfig job = long_job(name);
    check_sharing(job, {2, 4}, 3, {.packed = true});
    if (name == std::string("gpt2")) {  // positions continue across documents
      job.model.document_end_token = 7;
      check_sharing(job, {2}, 3, {.packed = true});
    }
  }
}

TEST_CASE("chunks of more tokens than are worked on at a time") {
  config::JobConfig job = long_placed_job("qwen3");
  job.model.num_layers = 1;
  job.model.sequence_length = 4400;
  job.model.attention_window = 1700;
  job.model.document_end_token = -1;
  job.model.reset_positions = false;
  job.topology.micro_batch_size = job.topology.global_batch_size = 1;
  check_sharing(job, {2}, 1);
}

TEST_CASE("windows that end anywhere in a chunk, and hide whole ones") {
  for (const int window : {1, 2, 5, 6, 12, 33}) {
    config::JobConfig job = long_job("mistral");
    job.model.attention_layers = {"local"};
    job.model.attention_window = window;
    CAPTURE(window);
    check_sharing(job, {4}, 2);
    if (sortie::test::every_case()) check_sharing(job, {2, 5}, 3);
  }
}

TEST_CASE("shared sequences with recomputation, accumulation and masked targets in replicas") {
  for (const char* architecture : {"llama", "gpt2", "deepseek-v3", "mixtral"}) {
    if (!sortie::test::every_case() && architecture != std::string("llama")) continue;
    config::JobConfig job = long_job(architecture);
    job.model.weight_tying = false;
    job.model.residual_dropout = 0.1;
    job.topology.global_batch_size = 8;
    job.topology.activation_checkpointing_type = "every_layer";
    job.topology.batch_rampup_start = 4;
    job.topology.batch_rampup_increment = 4;
    job.topology.batch_rampup_samples = 12;
    check_sharing(job, {2}, 5, {.masked = true}, /*replicas=*/2);
  }
}

TEST_CASE("shared sequences in bf16 stay near one process") {
  if (skips_bf16()) return;
  const config::JobConfig job = long_placed_job("llama");
  const int steps = sortie::test::every_case() ? 20 : 6;
  const LayoutRun alone = run_layout(job, 1, steps, DType::bf16);
  check_equal(run_layout(sharing(job, 2), 2, steps, DType::bf16), alone, 5e-3, 5e-2);
}

config::JobConfig recomputed_sharing_job() {
  config::JobConfig job = sharing(long_placed_job("llama"), 4);
  job.topology.activation_checkpointing_type = "every_layer";
  return job;
}

TEST_CASE("shared sequences give the same bits twice, and however late messages are") {
  const config::JobConfig job = recomputed_sharing_job();
  const LayoutRun first = run_layout(job, 4, 3);
  check_same_course(first, run_layout(job, 4, 3));
  for (const std::uint64_t seed : {5, 6})
    check_same_course(first,
                      run_layout(job, 4, 3, DType::f32,
                                 {.max_delay = std::chrono::microseconds(300), .seed = seed}));
}

TEST_CASE("ranks that share sequences and work late give the same bits") {
  const OnDevice cpu(Device{});  // only CPU contexts can defer ops
  const config::JobConfig job = recomputed_sharing_job();
  const LayoutRun first = run_layout(job, 4, 3);
  for (const std::uint64_t seed : {11, 12})
    check_same_course(first, run_layout(job, 4, 3, DType::f32, {}, {.late_seed = seed}));
}

/// Context parallelism combined with the other kinds of parallelism.
struct SharedMix {
  int tensor = 1, context = 2, pipeline = 1, interleave = 1, replicas = 1;
  bool sequence = false, sharded = false;
  int ranks() const { return tensor * context * pipeline * replicas; }
};

config::JobConfig in_shared_mix(config::JobConfig job, const SharedMix& mix) {
  job.topology.tensor_parallel_size = mix.tensor;
  job.topology.sequence_parallel = mix.sequence;
  job.topology.context_parallel_size = mix.context;
  job.topology.pipeline_parallel_size = mix.pipeline;
  job.topology.pipeline_interleave = mix.interleave;
  if (mix.sharded) job.topology.parameter_sharding = "optimizer";
  return job;
}

void check_shared_mix(config::JobConfig job, const SharedMix& mix, int steps) {
  CAPTURE(job.model.architecture);
  CAPTURE(mix.tensor);
  CAPTURE(mix.sequence);
  CAPTURE(mix.pipeline);
  job.topology.micro_batch_size = 1;
  job.model.num_layers = 4;
  const LayoutRun alone = run_layout(job, 1, steps);
  check_equal(run_layout(in_shared_mix(job, mix), mix.ranks(), steps), alone);
}

TEST_CASE("shared sequences beside shared layers, stages and a sharded optimizer") {
  check_shared_mix(long_placed_job("qwen3"), {.tensor = 2, .sequence = true}, 2);
  check_shared_mix(long_placed_job("llama"), {.pipeline = 2, .interleave = 2}, 2);
  check_shared_mix(long_job("gpt2"), {.replicas = 2, .sharded = true}, 2);
  check_shared_mix(long_placed_job("deepseek-v3"), {.tensor = 2, .pipeline = 2}, 2);
  if (!sortie::test::every_case()) return;
  for (const char* family : {"llama", "gpt2", "mixtral", "deepseek-v3"})
    for (const bool sequence : {false, true}) {
      check_shared_mix(long_placed_job(family), {2, 2, 2, 1, 2, sequence}, 20);
      check_shared_mix(long_placed_job(family), {2, 2, 2, 2, 1, sequence, true}, 3);
      check_shared_mix(long_job(family), {4, 2, 1, 1, 1, sequence}, 3);
    }
  for (const char* family : {"llama", "mixtral"})
    check_shared_mix(long_job(family),
                     {.context = 4, .pipeline = 2, .replicas = 2, .sharded = true}, 3);
}

TEST_CASE("validation of shared sequences is that of one process") {
  config::JobConfig job = long_placed_job("llama");
  job.trainer.eval_samples = 7;
  const auto loss_on = [&](int ranks) {
    double loss = 0.0;
    run_thread_ranks(ranks, [&](Communicator& world) {
      TinyTraining training(sharing(job, ranks), world);
      const auto validation = training.trainer->evaluate();
      SORTIE_CHECK(validation.has_value(), "{}", validation ? "" : validation.error().message);
      if (world.rank() == 0) loss = validation->loss;
    });
    return loss;
  };
  CHECK(loss_on(4) == doctest::Approx(loss_on(1)).epsilon(1e-6));
}

TEST_CASE("checkpoints of shared sequences are those of any other layout, to the bit") {
  const SharedMix layouts[] = {{.context = 1},
                               {.context = 2},
                               {.context = 4},
                               {.context = 2, .replicas = 2, .sharded = true},
                               {.tensor = 2, .context = 2, .sequence = true},
                               {.context = 2, .pipeline = 2}};
  for (std::size_t from = 0; from < std::size(layouts); ++from)
    for (std::size_t to = 0; to < std::size(layouts); ++to) {
      const bool chosen = to == (from + 2) % std::size(layouts);
      if (!sortie::test::every_case() && !chosen) continue;
      CAPTURE(from);
      CAPTURE(to);
      const sortie::test::ScopedTempDir folder;
      config::JobConfig job = long_job("llama");
      job.trainer.train_iterations = 2;
      job.trainer.save_dir = (folder.path() / "saves").string();
      const WholeTensors saved =
          whole_state(in_shared_mix(job, layouts[from]), layouts[from].ranks(), true);
      CHECK(saved.size() > 10);
      CHECK(saved == whole_state(in_shared_mix(job, layouts[to]), layouts[to].ranks(), false));
    }
}

}  // namespace
}  // namespace sortie::trainer::test
