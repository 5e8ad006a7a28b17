// Tests of expert parallelism with everything that changes how a step is computed, with deferred
// ops and delayed messages, with checkpoints, and against the plan.
#include <filesystem>

#include "tests/support/bf16.h"
#include "tests/support/bytes_to.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/layouts/expert_runs.h"
#include "trainer/hf/import.h"
#include "trainer/loop/replica_check.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer::test {
namespace {

const ExpertLayout kTwoReplicas{.experts = 2, .replicas = 2};
const ExpertLayout kShards{.experts = 2, .replicas = 4, .sharded = true};
const ExpertLayout kSlices{
    .experts = 4, .tensor = 2, .expert_tensor = 1, .replicas = 2, .sequence = true};
const ExpertLayout kAll{.experts = 4,
                        .tensor = 2,
                        .expert_tensor = 1,
                        .pipeline = 2,
                        .replicas = 2,
                        .sequence = true,
                        .sharded = true};

TEST_CASE("experts apart are recomputed, drop, accumulate, ramp up and leave targets out alike") {
  config::JobConfig job = experts_job("deepseek-v3");
  job.model.attention_dropout = 0.1;
  job.model.mla.q_lora_rank = 0;
  job.topology.activation_checkpointing_type = "every_layer";
  job.topology.micro_batch_size = 1;
  job.topology.batch_rampup_start = 4;
  job.topology.batch_rampup_increment = 4;
  job.topology.batch_rampup_samples = 12;
  const LayoutExtras extras{.masked = true};
  const LayoutRun alone = run_layout(job, 1, 5, DType::f32, {}, extras);
  for (const ExpertLayout& layout : {kTwoReplicas, kSlices})
    check_equal(run_layout(with_experts_on(job, layout), layout.ranks(), 5, DType::f32, {}, extras),
                alone);
}

TEST_CASE("frozen parts and low-rank updates leave experts apart as they are in one process") {
  config::JobConfig frozen = experts_job("mixtral");
  frozen.optimizer.freeze = {"layers.0.*", "layers.1.mlp.experts.3.*", "embedding.weight"};
  frozen.model.weight_tying = false;
  check_equal(run_layout(with_experts_on(frozen, kSlices), 4, 4), run_layout(frozen, 1, 4));
  config::JobConfig lora = experts_job("deepseek-v3");
  lora.lora.rank = 3;
  check_equal(run_layout(with_experts_on(lora, kTwoReplicas), 2, 4), run_layout(lora, 1, 4));
}

TEST_CASE("ranks with only frozen experts, or only a trained shared one, exchange all gradients") {
  // Nothing before the experts is trained.
  config::JobConfig frozen = experts_job("mixtral");
  frozen.model.weight_tying = false;
  frozen.optimizer.freeze = {"embedding.*", "final_norm*", "*.attention*", "*.mlp_norm*",
                             "*.router*"};
  for (int expert = 0; expert < 4; ++expert)  // all of the first rank
    frozen.optimizer.freeze.push_back("*.experts." + std::to_string(expert) + ".*");
  check_equal(run_layout(with_experts_on(frozen, kTwoReplicas), 2, 3), run_layout(frozen, 1, 3));
  config::JobConfig shared = experts_job("deepseek-v3");
  shared.model.moe.num_shared_experts = 1;
  shared.model.moe.first_dense_layers = 0;
  shared.lora.rank = 2;
  shared.lora.modules = {"*.shared.*"};
  check_equal(run_layout(with_experts_on(shared, kTwoReplicas), 2, 3), run_layout(shared, 1, 3));
}

TEST_CASE("experts apart in bf16 follow one process in bf16") {
  if (skips_bf16()) return;
  const config::JobConfig narrow = experts_job("mixtral");
  const LayoutRun alone = run_layout(narrow, 1, 4, DType::bf16);
  for (const ExpertLayout& layout : {kTwoReplicas, kShards}) {
    const LayoutRun run =
        run_layout(with_experts_on(narrow, layout), layout.ranks(), 4, DType::bf16);
    CHECK(run.wrong == "");
    for (std::size_t i = 0; i < run.losses.size(); ++i)
      CHECK(run.losses[i] == doctest::Approx(alone.losses[i]).epsilon(5e-3));
  }
}

TEST_CASE("experts apart give the same bits twice, however late ops and messages are") {
  config::JobConfig job = experts_job("deepseek-v3");
  job.topology.activation_checkpointing_type = "every_layer";
  for (const ExpertLayout& layout : {kSlices, kShards}) {
    const config::JobConfig apart = with_experts_on(job, layout);
    const LayoutRun once = run_layout(apart, layout.ranks(), 2);
    const auto check_same = [&](const LayoutRun& again) {
      CHECK(again.wrong == "");
      CHECK(again.losses == once.losses);
      CHECK(again.norms == once.norms);
      CHECK(again.weights == once.weights);
    };
    CHECK(once.wrong == "");
    check_same(
        run_layout(apart, layout.ranks(), 2, DType::f32, {std::chrono::microseconds(200), 5}));
    if (device().kind != DeviceKind::cpu) continue;
    check_same(run_layout(apart, layout.ranks(), 2, DType::f32, {std::chrono::microseconds(100), 6},
                          {.late_seed = 7}));
  }
}

TEST_CASE("choices of shared sequences are dropped alike, however late ops and messages are") {
  config::JobConfig job = with_experts_on(experts_job("mixtral"), {.experts = 2, .context = 2});
  job.model.moe.capacity_factor = 1.0;
  job.topology.activation_checkpointing_type = "every_layer";
  const LayoutRun once = run_layout(job, 2, 2);
  CHECK(once.wrong == "");
  REQUIRE(once.dropped.size() == 2);
  CHECK(once.dropped[0] > 0.0);
  const auto check_same = [&](const LayoutRun& again) {
    CHECK(again.wrong == "");
    CHECK(again.losses == once.losses);
    CHECK(again.dropped == once.dropped);
    CHECK(again.weights == once.weights);
  };
  check_same(run_layout(job, 2, 2, DType::f32, {std::chrono::microseconds(200), 5}));
  if (device().kind != DeviceKind::cpu) return;
  check_same(
      run_layout(job, 2, 2, DType::f32, {std::chrono::microseconds(100), 6}, {.late_seed = 7}));
}

TEST_CASE("weight gradients of experts apart are computed while gradients of rows come back") {
  const config::JobConfig job =
      with_experts_on(experts_job("mixtral"), {.experts = 2, .replicas = 2});
  const std::vector<std::int64_t> beside =
      polls_beside_exchanges(job, [](ParameterStore& store) { return store.expert_group(); });
  // Two products per mixture: gate with up, and down. Without a shared expert, nothing else is
  // computed during an exchange of rows.
  const std::int64_t products =
      2 * job.model.num_layers * job.topology.global_batch_size / job.topology.micro_batch_size / 2;
  REQUIRE(beside.size() == 2);
  for (const std::int64_t polls : beside) CHECK(polls >= products);
}

TEST_CASE("a sharded optimizer gives experts apart the weights of a whole one") {
  config::JobConfig job = with_experts_on(
      experts_job("deepseek-v3"), {.experts = 2, .tensor = 2, .expert_tensor = 1, .replicas = 2});
  const LayoutRun whole = run_layout(job, 4, 3);
  job.topology.parameter_sharding = "optimizer";
  const LayoutRun sharded = run_layout(job, 4, 3);
  CHECK(sharded.wrong == "");
  CHECK(sharded.losses == whole.losses);
  CHECK(sharded.weights == whole.weights);
}

/// Returns everything that ranks hold, by name. If `trains`, the ranks first train to the last step
/// and save; otherwise they load a checkpoint.
WholeTensors experts_state(const config::JobConfig& job, const ExpertLayout& layout, bool trains) {
  return whole_state(with_experts_on(job, layout), layout.ranks(), trains);
}

TEST_CASE("checkpoints go from experts on some ranks to experts on others, to the bit") {
  const ExpertLayout alone, pair{.tensor = 2}, stages{.pipeline = 2},
      four{.experts = 4, .replicas = 4};
  std::vector<std::pair<ExpertLayout, ExpertLayout>> pairs = {
      {kTwoReplicas, four}, {four, pair}, {kAll, alone}, {alone, kAll}};
  if (sortie::test::every_case())
    pairs.insert(pairs.end(),
                 {{kShards, kSlices}, {kSlices, stages}, {stages, kShards}, {pair, kTwoReplicas}});
  for (const auto& [from, to] : pairs) {
    CAPTURE(from.experts);
    CAPTURE(to.experts);
    const sortie::test::ScopedTempDir folder;
    config::JobConfig job = experts_job("deepseek-v3");
    job.trainer.train_iterations = 2;
    job.trainer.eval_interval = 1;
    job.trainer.eval_samples = 5;  // three passes, which do not divide evenly
    job.trainer.save_interval = 1;
    job.trainer.replica_check_interval = 1;
    job.trainer.save_dir = folder.str("saves");
    const WholeTensors saved = experts_state(job, from, true);
    CHECK(saved == experts_state(job, to, false));
  }
}

TEST_CASE(
    "a run with experts apart that goes on from a checkpoint has the bits of one that did not "
    "stop") {
  const sortie::test::ScopedTempDir folder;
  config::JobConfig job = experts_job("deepseek-v3");
  job.trainer.train_iterations = 4;
  const WholeTensors straight = experts_state(job, kSlices, true);
  job.trainer.save_dir = folder.str("saves");
  job.trainer.train_iterations = 2;
  job.learning_rate_scheduler.learning_rate_decay_iters = 4;
  config::JobConfig whole = job;
  (void)experts_state(job, kSlices, true);
  whole.trainer.train_iterations = 4;
  CHECK(experts_state(whole, kSlices, true) == straight);
}

TEST_CASE("an expert that differs from those of its replicas is found, and whose it is") {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_thread_ranks(4, [&](Communicator& world) {
    TinyTraining training(with_experts_on(experts_job("mixtral"), {.experts = 2, .replicas = 4}),
                          world);
    ParameterStore& store = training.trainer->store();
    const auto difference = [&] {
      return find_difference(training.trainer->layout(), training.rank, store).text;
    };
    const std::string equal = difference();
    if (world.rank() == 3) {  // holds the upper half of the experts, as rank 1 does
      const Parameter& expert = *store.find("layers.0.mlp.experts.6.down.weight");
      host_view(store, store.master())[static_cast<std::size_t>(expert.offset())] += 1.0f;
    }
    const std::string differs = difference();
    const std::lock_guard lock(mutex);
    texts.push_back(equal);
    texts.push_back(differs);
  });
  for (std::size_t i = 0; i < texts.size(); ++i)
    CHECK(
        texts[i] ==
        (i % 2 == 0 ? "" : "rank 1 (host-1), rank 3 (host-3) do not agree, and no majority does"));
  CHECK(texts.size() == 8);
}

TEST_CASE("mixtures of Hugging Face folders go on with experts apart as in one process") {
  for (const char* name : {"mixtral-a", "deepseek-v3-a", "qwen3-moe-a"}) {
    if (!sortie::test::every_case() && name != std::string("deepseek-v3-a")) continue;
    CAPTURE(name);
    const sortie::test::ScopedTempDir dir;
    const auto imported =
        import_hf(std::filesystem::path(SORTIE_TEST_DATA "/hf") / name, dir.str("imported"));
    REQUIRE_MESSAGE(imported, (imported ? "" : imported.error().message));
    config::JobConfig job = experts_job("mixtral");
    job.model = open_model(dir.str("imported"), {}).value().config;
    job.model.sequence_length = 20;
    job.model.precision = "f32";
    job.trainer.load_dir = dir.str("imported");
    REQUIRE(config::check_layout(with_experts_on(job, kTwoReplicas)).empty());
    check_equal(run_layout(with_experts_on(job, kTwoReplicas), 2, 3), run_layout(job, 1, 3));
  }
}

TEST_CASE("a planned rank with experts of its own takes and sends what the formulas say") {
  config::JobConfig whole = experts_job("mixtral");
  whole.model.hidden_size = 96;
  whole.model.sequence_length = 64;
  const auto plan_of = [](const config::JobConfig& job, std::int64_t ranks) {
    const auto plan = plan_rank(job, {.micro_batch_size = 2, .world_size = ranks});
    REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
    return *plan;
  };
  const RankPlan alone = plan_of(whole, 1);
  const config::JobConfig job = with_experts_on(whole, {.experts = 4, .replicas = 4});
  const RankPlan plan = plan_of(job, 4);
  CHECK(plan.parameters.total == alone.parameters.total);
  CHECK(plan.flop_per_token == alone.flop_per_token);
  // Each row is sent to each of its experts and back, and so is its gradient. One of E ranks is the
  // sender itself.
  const config::ModelConfig& m = job.model;
  const double rows = 2.0 * static_cast<double>(m.sequence_length * m.moe.topk);
  const double formula = 4.0 * static_cast<double>(m.num_layers) * rows *
                         static_cast<double>(m.hidden_size) * 4.0 * 3.0 / 4.0;
  CHECK(bytes_to(plan.sent, "expert") == doctest::Approx(formula).epsilon(0.03));
  CHECK(bytes_to(plan.sent, "expert data") == 0.0);  // each expert is on one rank
  MemoryUse measured;
  run_thread_ranks(4, [&](Communicator& world) {
    TinyTraining training(job, world);
    training.losses(2);
    if (world.rank() == 0)
      measured = tensor_memory(training.trainer->store(), training.trainer->context().allocator());
  });
  CHECK(plan.memory.weights == measured.weights);
  CHECK(plan.memory.gradients == measured.gradients);
  CHECK(plan.memory.optimizer == measured.optimizer);
  CHECK(plan.memory.weights < alone.memory.weights / 2);
}

TEST_CASE(
    "OpenSeek's 16B layout trains in small widths: stages of 13 and 14 layers, experts on 8 "
    "ranks") {
  if (!sortie::test::every_case()) return;
  config::JobConfig job = experts_job("deepseek-v3");
  job.model.hidden_size = 64;
  job.model.num_attention_heads = 16;
  job.model.num_layers = 27;
  job.model.sequence_length = 16;
  job.model.moe.ffn_hidden_size = 16;
  job.model.moe.num_groups = 1;
  job.model.moe.group_topk = 1;
  job.model.ffn_hidden_size = 64;
  const ExpertLayout layout{
      .experts = 8, .tensor = 8, .expert_tensor = 1, .pipeline = 2, .sequence = true};
  const LayoutRun alone = run_layout(job, 1, 2);
  job.topology.pipeline_stage_layers = {"13", "14"};
  check_equal(run_layout(with_experts_on(job, layout), layout.ranks(), 2), alone);
}

}  // namespace
}  // namespace sortie::trainer::test
