// The plan's output about the model of a training job, as the real sortie-train computes it.
#include "launcher/plan/plan_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/config/architectures.h"
#include "launcher/plan/host_memory.h"
#include "launcher/plan/plan.h"
#include "launcher/run/ask_trainer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::has;

config::JobConfig training(const char* preset) {
  config::JobConfig job;
  const config::Preset* found = config::find_preset(preset);
  REQUIRE(found != nullptr);
  job.model = found->model;
  job.model.preset = preset;
  job.data.data_prefixes = {"/data/text"};
  job.topology.micro_batch_size = 2;
  job.trainer.threads = 4;
  job.trainer.save_dir = "/checkpoints";
  return job;
}

const std::vector<config::HostSlots> kMixedHosts = {{"localhost", {0}}, {"h2", {0, 1}}};

LauncherFacts machine(std::uint64_t memory_bytes = 0) {
  return {"/opt/sortie/bin/sortie-train",
          "/work",
          {},
          {},
          memory_bytes,
          [](const CostQuestion& question) { return ask_trainer(SORTIE_TRAIN_BINARY, question); }};
}

/// A script with these lines in place of sortie-train.
LauncherFacts with_trainer(const test::ScopedTempDir& dir, const std::string& lines,
                           std::chrono::milliseconds limit) {
  LauncherFacts facts;
  const std::string path = dir.str("sortie-train");
  test::write_text(path, "#!/bin/sh\n" + lines + "\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  facts.ask_trainer = [path, limit](const CostQuestion& question) {
    return ask_trainer(path, question, limit);
  };
  return facts;
}

}  // namespace

TEST_CASE("a training over NCCL has no PMIx, unless it is asked for") {
  config::JobConfig job = training("gpt2-124m");
  LauncherFacts facts = machine();
  facts.ask_trainer = nullptr;
  CHECK(make_plan(job, kMixedHosts, facts)->mpi == "auto");
  job.topology.backend = "nccl";
  CHECK(make_plan(job, kMixedHosts, facts)->mpi == "off");
  job.runner.mpi = "on";
  CHECK(make_plan(job, kMixedHosts, facts)->mpi == "on");
  job.runner.mpi = "auto";
  job.runner.program = {"./another"};
  CHECK(make_plan(job, kMixedHosts, facts)->mpi == "auto");
}

TEST_CASE("the plan of a training says parameters, operations and memory") {
  config::JobConfig job = training("gpt2-124m");
  job.model.precision = "f32";
  const LaunchPlan plan = *make_plan(job, kMixedHosts, machine());
  const std::string text = plan_text(plan);
  CAPTURE(text);
  CHECK(has(text,
            "\n  model     gpt2 (gpt2-124m): 124,439,808 parameters\n"
            "  work      798MFLOP a token, 4.90TFLOP a step of 6,144 tokens\n"
            "  memory    of a rank with 4 threads, in MiB\n"
            "                             f32\n"
            "    weights                  475\n"
            "    gradients                475\n"
            "    optimizer                950\n"));
  CHECK(has(text, "    packed weights           "));
  CHECK(has(text, "    activations  "));
  CHECK(has(text, "    total  "));
  CHECK_FALSE(has(text, "warning"));

  config::JobConfig changed = job;
  changed.model.num_layers = 2;
  changed.model.sequence_length = 512;
  const LaunchPlan other = *make_plan(changed, kMixedHosts, machine());
  CHECK(has(plan_text(other),
            "\n  model     gpt2 (gpt2-124m with num_layers = 2, sequence_length = 512): "));
  CHECK(plan_json(other)["model"]["beside_preset"][0] == "num_layers = 2");

  const auto json = plan_json(plan)["model"];
  CHECK(json["parameters"] == 124439808);
  CHECK(json["trained_parameters"] == 124439808);
  CHECK(json["flops_per_token"].get<double>() == doctest::Approx(7.98e8).epsilon(0.001));
  CHECK(json["tokens_per_step"] == 6144);
  const auto bytes = json["rank_memory_bytes"]["f32"];
  CHECK(bytes["gradients"] == 4 * 124475904);
  std::int64_t sum = 0;
  for (const auto& [name, value] : bytes.items())
    if (name != "total") sum += value.get<std::int64_t>();
  CHECK(bytes["total"] == sum);
}

TEST_CASE("where CPUs decide on the precision the plan has both, and says what it assumes") {
  config::JobConfig job = training("openseek-small");
  job.trainer.threads = 0;
  job.lora.rank = 8;
  job.lora.modules = {"*.attention.*"};
  const std::string text = plan_text(*make_plan(job, kMixedHosts, machine()));
  CAPTURE(text);
  CHECK(has(text, " parameters, a token meets "));
  CHECK(has(text, " are trained\n"));
  CHECK(has(text,
            "with 8 threads (assumed: the hosts' cores are not known), in MiB\n"
            "                            bf16         f32\n"));
  job.topology.micro_batch_size = 1;
  const auto less = make_plan(job, kMixedHosts, machine())->model->cost.memory[0];
  job.topology.activation_checkpointing_type = "every_layer";
  const auto recomputed = make_plan(job, kMixedHosts, machine())->model->cost.memory[0];
  CHECK(recomputed.part("activations") < less.part("activations"));
  CHECK(recomputed.part("weights") == less.part("weights"));
}

TEST_CASE("the threads of a rank are those that its runner will tell it") {
  config::JobConfig job = training("pythia-70m");
  job.trainer.threads = 0;
  LauncherFacts here = machine();
  here.topology = cpu::Topology{{{0, {0}}, {0, {1}}, {0, {2}}, {0, {3}}}, {}};
  const LaunchPlan plan = *make_plan(job, {{"localhost", {0, 1}}}, here);
  CHECK(plan.model->cost.threads == 2);
  CHECK_FALSE(plan.model->threads_assumed);
}

TEST_CASE("a host with less memory than its ranks need is warned of") {
  const config::JobConfig job = training("llama-3.1-8b");
  const LaunchPlan plan = *make_plan(job, kMixedHosts, machine(std::uint64_t{16} << 30));
  REQUIRE(plan.model_warnings.size() == 1);  // the memory of h2 is not known
  CHECK(has(plan.model_warnings[0], "localhost: 1 rank of "));
  CHECK(has(plan.model_warnings[0],
            "and it has 16.0 GiB; weights, gradients and the optimizer's state of a rank take "));
  CHECK(has(plan.model_warnings[0],
            ": share them out over more hosts with topology.parameter_sharding, "
            "topology.tensor_parallel_size or topology.pipeline_parallel_size, or use a smaller "
            "model"));
  CHECK(has(plan_text(plan), "  warning   localhost: 1 rank of "));
  CHECK(plan_json(plan)["warnings"][0] == plan.model_warnings[0]);
}

TEST_CASE("what a host with too little memory needs depends on what the memory is for") {
  config::JobConfig job = training("gpt2-124m");
  job.topology.micro_batch_size = 64;
  const LaunchPlan plan = *make_plan(job, kMixedHosts, machine(std::uint64_t{6} << 30));
  REQUIRE(plan.model_warnings.size() == 1);
  CHECK(has(plan.model_warnings[0], "and it has 6.0 GiB; lower topology.micro_batch_size"));
  const HostPlan& host = plan.hosts[0];
  const auto need = static_cast<std::uint64_t>(
      std::ranges::min(plan.model->cost.memory, {}, &training::ModelCost::Memory::on_host)
          .on_host());
  CHECK(check_memory(plan, host, 0));  // unknown
  CHECK(check_memory(plan, host, need / 2 + 1));
  const auto refused = check_memory(plan, host, need / 2 - 1);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::unsupported);
  CHECK(has(refused.error().message, ", less than half: the kernel would end these ranks"));
}

TEST_CASE("training that keeps nothing is warned of") {
  config::JobConfig job = training("gpt2-124m");
  job.trainer.save_dir.clear();
  const LaunchPlan plan = *make_plan(job, kMixedHosts, machine());
  const std::string warning =
      "trainer.save_dir is not set: no checkpoint is written and nothing of this training is kept; "
      "add --set trainer.save_dir=FOLDER";
  CHECK(plan.model_warnings == std::vector<std::string>{warning});
  CHECK(has(plan_text(plan), "  warning   " + warning + "\n"));
}

TEST_CASE("hosts with more compute threads than cores are warned of") {
  config::JobConfig job = training("pythia-70m");
  LauncherFacts here = machine();
  here.topology = cpu::Topology{{{0, {0}}, {0, {1}}, {0, {2}}, {0, {3}}}, {}};
  CHECK(
      make_plan(job, {{"localhost", {0}}}, here)->model_warnings.empty());  // 4 threads on 4 cores
  const LaunchPlan plan = *make_plan(job, {{"localhost", {0, 1}}}, here);
  REQUIRE(plan.model_warnings.size() == 1);
  CHECK(plan.model_warnings[0] ==
        "localhost: 8 compute threads on 4 cores, so steps are slow; set trainer.threads lower, or "
        "give it fewer slots");
  // Each rank has at least one thread, however few cores there are.
  job.trainer.threads = 0;
  CHECK(make_plan(job, {{"localhost", {0, 1, 2, 3}}}, here)->model_warnings.empty());
  const LaunchPlan crowded = *make_plan(job, {{"localhost", {0, 1, 2, 3, 4}}}, here);
  REQUIRE(crowded.model_warnings.size() == 1);
  CHECK(has(crowded.model_warnings[0], "localhost: 5 compute threads on 4 cores, "));
}

TEST_CASE("patterns that match no parameter fail before a host is touched") {
  config::JobConfig job = training("gpt2-124m");
  job.optimizer.freeze = {"layrs.*"};
  const auto plan = make_plan(job, kMixedHosts, machine());
  REQUIRE_FALSE(plan.has_value());
  CHECK(plan.error().code == ErrorCode::config);
  CHECK(has(plan.error().message, "optimizer.freeze: \"layrs.*\" matches nothing"));
}

TEST_CASE("without an answer of the trainer the rest of the plan is there, and one line says why") {
  const config::JobConfig job = training("gpt2-124m");
  const test::ScopedTempDir dir;
  struct Case {
    const char* trainer;
    const char* why;
    std::chrono::milliseconds limit{30000};
  };
  const Case cases[] = {
      {"echo '{\"version\": \"99.1\", \"parameters\": 1, \"rank_memory_bytes\": {\"f32\": {}}}'",
       " is version 99.1, this is "},
      {"echo 'plan: no such verb' >&2; exit 2",
       " plan: exit code 2: plan: no such verb; install the sortie-train of this build, or "},
      {"sleep 60", " plan: has not answered in time", std::chrono::milliseconds(500)},
      {"exec 1>&- 2>&-; sleep 60", " plan: signal 9 (SIGKILL)", std::chrono::milliseconds(4000)},
      {"exec yes", " plan: wrote more than 4 MiB"},
      {"kill -SEGV $$", " plan: signal 11 (SIGSEGV"},
      {"true", " plan: no object with parameters"},
  };
  for (const Case& each : cases) {
    CAPTURE(std::string(each.trainer));
    const auto plan = make_plan(job, kMixedHosts, with_trainer(dir, each.trainer, each.limit));
    REQUIRE(plan.has_value());
    CHECK_FALSE(plan->model.has_value());
    CHECK(plan->world_size == 3);
    REQUIRE(plan->model_warnings.size() == 1);
    CAPTURE(plan->model_warnings[0]);
    CHECK(has(plan->model_warnings[0], "the plan has no parameters, operations and memory: "));
    CHECK(has(plan->model_warnings[0], each.why));
    CHECK_FALSE(has(plan->model_warnings[0], "\n"));
  }
  LauncherFacts nowhere;
  nowhere.ask_trainer = [](const CostQuestion& question) {
    return ask_trainer("/nowhere/sortie-train", question);
  };
  const auto plan = make_plan(job, kMixedHosts, nowhere);
  REQUIRE(plan.has_value());
  CHECK(has(plan->model_warnings.at(0), "there is no /nowhere/sortie-train; install sortie-train"));
  CHECK(has(plan_text(*plan), "  batch     "));
  CHECK_FALSE(plan_json(*plan).contains("model"));
}

TEST_CASE("a training is warned of what is no matter of its model, too, also after a survey") {
  config::JobConfig job = training("pythia-70m");
  job.trainer.save_dir.clear();
  job.recovery.max_restarts = 2;
  job.recovery.min_hosts = 5;
  job.runner.network.tunnel = "wireguard";
  LauncherFacts facts = machine();
  facts.ask_trainer = nullptr;
  LaunchPlan plan = *make_plan(job, {{"localhost", {0}}}, facts);
  const std::string text = plan_text(plan);
  CHECK(has(text, "  warning   runner.network.tunnel: a job on one host needs no tunnel"));
  CHECK(has(text, "  warning   recovery.min_hosts: 5 are more hosts than the 1 of the job"));
  CHECK(has(text, "  warning   trainer.save_dir is not set"));
  CHECK(plan_json(plan)["warnings"].size() == 3);
  REQUIRE(plan_model(job, facts.ask_trainer, plan));  // as a survey does
  CHECK(plan_text(plan) == text);
}

TEST_CASE("a job of another program has no model") {
  config::JobConfig job;
  job.runner.program = {"./ring"};
  const LaunchPlan plan = *make_plan(job, kMixedHosts, machine(1));
  CHECK_FALSE(plan.model.has_value());
  CHECK_FALSE(plan_json(plan).contains("model"));
  CHECK(plan.warnings.empty());
  CHECK(plan.model_warnings.empty());
}

}  // namespace sortie::launcher
