// Compares pipelines with one process.
#include "tests/support/bf16.h"
#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/planning/part_parameters.h"
#include "trainer/planning/rank_plan.h"

namespace sortie::trainer::test {
namespace {

/// Returns `job` divided into stages.
config::JobConfig staged(config::JobConfig job, int stages, int interleave = 1) {
  job.topology.pipeline_parallel_size = stages;
  job.topology.pipeline_interleave = interleave;
  return job;
}

config::JobConfig deep_job(const std::string& architecture = "llama", bool tied = true) {
  const bool mixture =
      architecture == "deepseek-v3" || architecture == "mixtral" || architecture == "qwen3-moe";
  config::JobConfig job = mixture ? mixture_job(architecture) : tiny_job(architecture);
  job.model.num_layers = 4;
  job.model.weight_tying = tied;
  return job;
}

/// Compares the gradients of a step, and the losses before and after its update, with those of one
/// process.
void check_one_step(const config::JobConfig& job, int stages, int interleave = 1, int replicas = 1,
                    const MakeSamples& samples = {}) {
  CAPTURE(job.model.architecture);
  CAPTURE(stages);
  CAPTURE(interleave);
  const LayoutRun alone = run_layout(job, 1, 2, DType::f32, {}, {}, samples);
  check_equal(run_layout(staged(job, stages, interleave), stages * replicas, 2, DType::f32, {}, {},
                         samples),
              alone);
}

}  // namespace

TEST_CASE("stages of a pipeline train as one process does") {
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const config::JobConfig job = deep_job("llama", tied);
    const LayoutRun alone = run_layout(job, 1, 20);
    for (const int stages : {2, 4}) {
      CAPTURE(stages);
      check_equal(run_layout(staged(job, stages), stages, 20), alone);
    }
    check_equal(run_layout(staged(job, 2, 2), 2, 20), alone);
  }
}

TEST_CASE("gradients of weights that are put off are those of 1F1B, to the bit") {
  for (const char* family : {"gpt2", "llama", "mixtral", "deepseek-v3"}) {
    config::JobConfig job = deep_job(family);
    job.topology.micro_batch_size = 1;
    job.topology.global_batch_size = 6;
    for (const int stages : {2, 4}) {
      CAPTURE(family);
      CAPTURE(stages);
      config::JobConfig put_off = staged(job, stages);
      put_off.topology.pipeline_schedule = "zero_bubble";
      const LayoutRun one_after_another = run_layout(staged(job, stages), stages, 4);
      check_same_course(run_layout(put_off, stages, 4), one_after_another);
      if (!sortie::test::every_case()) break;
    }
  }
  // Combined with replicas whose gradients are reduced meanwhile, a sharded optimizer and shared
  // layers.
  config::JobConfig mixed = staged(deep_job(), 2);
  mixed.topology.micro_batch_size = 1;
  mixed.topology.global_batch_size = 6;
  mixed.topology.tensor_parallel_size = 2;
  mixed.topology.sequence_parallel = true;
  mixed.model.sequence_length = 20;  // divides into two equal parts
  for (const char* sharding : {"none", "optimizer"}) {
    mixed.topology.parameter_sharding = sharding;
    config::JobConfig put_off = mixed;
    put_off.topology.pipeline_schedule = "zero_bubble";
    check_same_course(run_layout(put_off, 8, 3), run_layout(mixed, 8, 3));
  }
}

TEST_CASE("every family trains in stages") {
  check_one_step(deep_job("gpt2"), 2);
  check_one_step(deep_job("mixtral"), 4);
  check_one_step(deep_job("mixtral"), 2, 2);
  check_one_step(deep_job("deepseek-v3", false), 2, 2);
  if (!sortie::test::every_case()) return;
  for (const Family& family : families())
    for (const bool tied : {true, false}) {
      const std::string name(family.name);
      check_one_step(deep_job(name, tied), 2);
      check_one_step(deep_job(name, tied), 2, 2);
      check_one_step(deep_job(name, tied), 4);
    }
}

TEST_CASE("pipelines with any number of micro-batches, replicas beside them") {
  for (const std::int64_t micro_steps : {1, 2, 3, 4, 5, 6, 7, 8}) {
    if (!sortie::test::every_case() && micro_steps != 1 && micro_steps != 5) continue;
    CAPTURE(micro_steps);
    config::JobConfig job = deep_job();
    job.topology.micro_batch_size = 1;
    job.topology.global_batch_size = 2 * micro_steps;
    check_one_step(job, 2, 1, 2);
    if (micro_steps % 2 == 0) check_one_step(job, 2, 2, 2);
    if (sortie::test::every_case()) check_one_step(job, 4, 1, 1);
  }
}

TEST_CASE("stages mask targets, drop, recompute and end documents as one process does") {
  config::JobConfig job = deep_job("gpt2");
  job.model.embedding_dropout = job.model.residual_dropout = job.model.attention_dropout = 0.1;
  job.model.document_end_token = 7;
  job.model.reset_positions = true;
  check_one_step(job, 2, 2);
  job.topology.activation_checkpointing_type = "every_layer";
  check_one_step(job, 4, 1, 1,
                 [](std::int64_t vocab) { return std::make_unique<MaskedSource>(vocab); });
  config::JobConfig mixture = deep_job("deepseek-v3");
  mixture.topology.activation_checkpointing_type = "every_layer";
  check_one_step(mixture, 2, 1, 2);
}

TEST_CASE("what one stage freezes, another trains") {
  config::JobConfig job = deep_job("llama", false);
  job.optimizer.freeze = {"embedding.*", "layers.0.*", "layers.1.*"};  // all of the first stage
  check_one_step(job, 2);
  check_one_step(job, 2, 2);
  job.optimizer.freeze = {"layers.3.*", "head.*", "final_norm.*"};
  check_one_step(job, 4);
  job = deep_job("llama");
  job.optimizer.freeze = {"embedding.*"};  // both copies of the tied weight
  check_one_step(job, 2);
  job = deep_job("llama");
  job.lora.rank = 2;
  job.lora.modules = {"layers.2.attention.*", "layers.3.mlp.*"};
  check_one_step(job, 2);
}

TEST_CASE("a pattern may match parameters of another stage, and must match some") {
  const auto error_of = [](const config::JobConfig& job) -> std::string {
    ExecutionContext context(1, {.kind = DeviceKind::meta});
    ParameterStore store;
    const LanguageModel model(context, job.model, store, false, part_of_stage(job, 1));
    Optimizer optimizer(job, store);
    const auto facts = prepare_parameters(job, model.part(), store, optimizer);
    return facts ? "none" : facts.error().message;
  };
  config::JobConfig job = staged(deep_job(), 2);
  job.optimizer.freeze = {"layers.0.*"};
  CHECK(error_of(job) == "none");
  job.optimizer.freeze = {"layers.9.*"};
  CHECK(error_of(job).starts_with("optimizer.freeze: \"layers.9.*\" matches nothing"));
  job.optimizer.freeze = {"*"};
  CHECK(error_of(job).contains("every parameter is frozen"));
  job.optimizer.freeze = {};
  job.lora.rank = 2;
  job.lora.modules = {"layers.0.*"};
  CHECK(error_of(job) == "none");
  job.lora.modules = {"layers.0.*", "nothing"};
  CHECK(error_of(job).starts_with("lora.modules: \"nothing\""));
}

TEST_CASE("a pipeline gives the same bits twice, and however long messages take") {
  for (const int interleave : {1, 2}) {
    CAPTURE(interleave);
    const config::JobConfig job = staged(deep_job(), 2, interleave);
    const LayoutRun once = run_layout(job, 4, 4);
    for (std::uint64_t seed = 1; seed <= (sortie::test::every_case() ? 10 : 2); ++seed) {
      CAPTURE(seed);
      const LayoutRun late =
          run_layout(job, 4, 4, DType::f32, {std::chrono::microseconds(2000), seed});
      CHECK(late.wrong == "");
      CHECK(late.losses == once.losses);
      CHECK(late.norms == once.norms);
      CHECK(late.weights == once.weights);
    }
  }
}

TEST_CASE("stages whose ops run late give the same bits") {
  if (device().kind != DeviceKind::cpu) return;  // only CPU contexts can defer ops
  const config::JobConfig job = staged(deep_job("mixtral"), 2, 2);
  const auto losses_of = [&](std::uint64_t late_seed) {
    std::vector<double> losses;
    run_thread_ranks(2, [&](Communicator& world) {
      TinyTraining training(job, world);
      if (late_seed != 0)
        training.trainer->context().defer(late_seed + static_cast<std::uint64_t>(world.rank()));
      const std::vector<double> own = training.losses(3);
      if (world.rank() == 0) losses = own;
    });
    return losses;
  };
  const std::vector<double> at_once = losses_of(0);
  for (std::uint64_t seed = 1; seed <= (sortie::test::every_case() ? 10 : 2); ++seed) {
    CAPTURE(seed);
    CHECK(losses_of(10 * seed) == at_once);
  }
}

TEST_CASE("stages in bf16 stay near one process") {
  if (skips_bf16()) return;
  const config::JobConfig job = deep_job();
  check_equal(run_layout(staged(job, 2, 2), 2, 20, DType::bf16),
              run_layout(job, 1, 20, DType::bf16), 5e-3, 3e-2);
}

TEST_CASE("the losses beside the loss, and the routers' biases, are those of all stages") {
  for (const char* family : {"mixtral", "deepseek-v3"}) {
    CAPTURE(std::string(family));
    const config::JobConfig job = deep_job(family);
    const auto last_report = [&](const config::JobConfig& of, int ranks) {
      StepReport last;
      run_thread_ranks(ranks, [&](Communicator& world) {
        TinyTraining training(of, world);
        for (int step = 0; step < 3; ++step) {
          const auto report = training.trainer->step();
          SORTIE_CHECK(report.has_value());
          if (world.rank() == 0) last = *report;
        }
      });
      return last;
    };
    const StepReport alone = last_report(job, 1);
    for (const int interleave : {1, 2}) {
      const StepReport both = last_report(staged(job, 2, interleave), 4);
      CHECK(alone.balance_loss.value() > 0.0);
      CHECK(both.balance_loss.value() == doctest::Approx(alone.balance_loss.value()).epsilon(1e-5));
      CHECK(both.mtp_loss.value() == doctest::Approx(alone.mtp_loss.value()).epsilon(1e-5));
    }
    if (job.model.moe.bias_update_rate == 0.0) continue;
    const LayoutRun whole = run_layout(job, 1, 3), parts = run_layout(staged(job, 2, 2), 2, 3);
    int biases = 0;
    for (const auto& [name, values] : whole.weights) {
      if (!name.ends_with(".router.bias")) continue;
      CAPTURE(name);
      CHECK(parts.weights.at(name) == values);
      ++biases;
    }
    CHECK(biases == 4);  // three layers and the multi-token prediction layer
  }
}

TEST_CASE("validation through stages gives the bits of one process") {
  config::JobConfig job = deep_job();
  job.trainer.eval_samples = 7;
  const auto loss_of = [](const config::JobConfig& of, int ranks) {
    double loss = 0.0;
    run_thread_ranks(ranks, [&](Communicator& world) {
      TinyTraining training(of, world);
      const double first = training.trainer->evaluate().value().loss;
      SORTIE_CHECK(training.trainer->step().has_value());  // training continues after validation
      if (world.rank() == 0) loss = first;
    });
    return loss;
  };
  const double alone = loss_of(job, 1);
  CHECK(loss_of(staged(job, 2), 2) == alone);
  CHECK(loss_of(staged(job, 4), 4) == alone);
  CHECK(loss_of(staged(job, 2, 2), 4) == alone);
}

TEST_CASE("checkpoints go from any number of stages to any other, to the bit") {
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    const config::JobConfig plain = deep_job(tied ? "llama" : "deepseek-v3", tied);
    const auto job_in = [&](const std::filesystem::path& folder, int stages, int interleave) {
      config::JobConfig job = staged(plain, stages, interleave);
      job.trainer.save_dir = folder;
      job.trainer.train_iterations = 2;
      return job;
    };
    for (const auto& [from, to] : {std::pair{1, 2}, {2, 1}, {4, 2}}) {
      CAPTURE(from);
      CAPTURE(to);
      const sortie::test::ScopedTempDir folder;
      const WholeTensors saved = whole_state(job_in(folder.path(), from, 1), from, /*trains=*/true);
      const WholeTensors loaded =
          whole_state(job_in(folder.path(), to, to == 2 ? 2 : 1), to, /*trains=*/false);
      CHECK(saved.size() > 40);
      CHECK(loaded == saved);
    }
  }
}

TEST_CASE("the stages' plans add up to the model, and say what each of them takes") {
  if (device().kind != DeviceKind::cpu) return;
  config::JobConfig job = deep_job("mixtral");
  job.topology.global_batch_size = 16;
  const PlanOptions alone{.micro_batch_size = 2, .world_size = 1};
  const RankPlan whole = plan_rank(job, alone).value();
  for (const auto& [interleave, schedule] :
       {std::pair(1, "1f1b"), {2, "1f1b"}, {1, "zero_bubble"}}) {
    CAPTURE(interleave);
    CAPTURE(schedule);
    config::JobConfig of = staged(job, 2, interleave);
    of.topology.pipeline_schedule = schedule;
    const auto stages = plan_stages(of, {.micro_batch_size = 2, .world_size = 2}).value();
    REQUIRE(stages.size() == 2);
    const RankPlan both = whole_plan(stages);
    CHECK(both.parameters.total == whole.parameters.total);
    CHECK(both.parameters.active == whole.parameters.active);
    CHECK(both.parameters.trained == whole.parameters.trained);
    CHECK(both.flop_per_token == doctest::Approx(whole.flop_per_token));
    MemoryUse measured[2];
    run_thread_ranks(2, [&](Communicator& world) {
      TinyTraining training(of, world);
      (void)training.losses(2);
      measured[world.rank()] =
          tensor_memory(training.trainer->store(), training.trainer->context().allocator());
    });
    for (std::size_t stage = 0; stage < 2; ++stage) {
      CAPTURE(stage);
      const MemoryUse& planned = stages[stage].memory;
      CHECK(measured[stage].weights == planned.weights);
      CHECK(measured[stage].gradients == planned.gradients);
      CHECK(static_cast<double>(measured[stage].activations) ==
            doctest::Approx(static_cast<double>(planned.activations)).epsilon(0.05));
    }
  }
}

}  // namespace sortie::trainer::test
