// Tests of ranks that share sequences and experts, or sequences and all weights, at once: they
// train as one process does, and checkpoints move from one layout to another.
#include "tests/support/temp_dir.h"
#include "tests/trainer/layouts/expert_runs.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig both_job(const std::string& architecture) {
  config::JobConfig job = experts_job(architecture);
  job.model.sequence_length = 40;
  job.topology.global_batch_size = 4;
  return job;
}

config::JobConfig sharing_sequences(config::JobConfig job, int ranks) {
  job.topology.context_parallel_size = ranks;
  return job;
}

TEST_CASE("ranks share sequences and experts at once") {
  for (const char* architecture : {"mixtral", "deepseek-v3"}) {
    CAPTURE(architecture);
    const config::JobConfig job = both_job(architecture);
    const LayoutRun alone = run_layout(job, 1, 6);
    for (const bool sharded : {false, true})
      check_equal(
          run_layout(sharing_sequences(with_experts_on(job, {.experts = 2, .sharded = sharded}), 2),
                     4, 6),
          alone);
    if (!sortie::test::every_case()) continue;
    const ExpertLayout slices{
        .experts = 4, .tensor = 2, .expert_tensor = 1, .pipeline = 2, .sequence = true};
    check_equal(run_layout(sharing_sequences(with_experts_on(job, slices), 2), 8, 6), alone);
  }
}

TEST_CASE("ranks that share sequences keep shares of all weights") {
  for (const char* architecture : {"llama", "mixtral"}) {
    CAPTURE(architecture);
    config::JobConfig job = both_job(architecture);
    const LayoutRun alone = run_layout(job, 1, 6);
    job.topology.parameter_sharding = "full";
    check_equal(run_layout(sharing_sequences(job, 2), 4, 6), alone);
    if (sortie::test::every_case()) check_equal(run_layout(sharing_sequences(job, 4), 4, 6), alone);
  }
}

TEST_CASE("checkpoints go between shared experts, shared sequences and full sharding, to the bit") {
  config::JobConfig job = both_job("mixtral");
  job.trainer.train_iterations = 2;
  const config::JobConfig experts = with_experts_on(job, {.experts = 2});
  config::JobConfig full = sharing_sequences(job, 2);
  full.topology.parameter_sharding = "full";
  for (const bool to_full : {true, false}) {
    CAPTURE(to_full);
    const sortie::test::ScopedTempDir folder;
    config::JobConfig saving = to_full ? experts : full, loading = to_full ? full : experts;
    saving.trainer.save_dir = loading.trainer.save_dir = (folder.path() / "saves").string();
    const WholeTensors saved = whole_state(saving, to_full ? 2 : 4, /*trains=*/true);
    CHECK(saved.size() > 20);
    CHECK(saved == whole_state(loading, to_full ? 4 : 2, /*trains=*/false));
  }
}

}  // namespace
}  // namespace sortie::trainer::test
