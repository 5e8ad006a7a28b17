// How many ranks can share the layers of a model.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/config/architectures.h"
#include "common/config/mesh.h"
#include "common/config/stages.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

/// Messages of the violations of rule G1.
std::vector<std::string> layout_problems(const ModelConfig& model, std::int64_t ranks) {
  JobConfig job;
  job.model = model;
  job.topology.tensor_parallel_size = ranks;
  std::vector<std::string> messages;
  for (const Violation& violation : check_layout(job)) {
    CHECK(violation.rule == "G1");
    messages.push_back(violation.message);
  }
  return messages;
}

ModelConfig small_model() {
  ModelConfig model;
  model.architecture = "llama";
  model.hidden_size = 48;
  model.num_attention_heads = 12;
  model.attention_num_kv_heads = 4;
  model.ffn_hidden_size = 96;
  return model;
}

TEST_CASE("heads and inner widths are shared evenly, key-value heads may be had in runs") {
  for (const std::int64_t ranks : {1, 2, 4, 12}) {
    CAPTURE(ranks);
    CHECK(layout_problems(small_model(), ranks).empty());
  }
  CHECK(layout_problems(small_model(), 3) ==
        std::vector<std::string>{"4 key-value heads can neither be shared by 3 ranks nor be the "
                                 "same on equal parts of them; use 1, 2, 4 or 12"});
  ModelConfig model = small_model();
  model.ffn_hidden_size = 98;
  CHECK(layout_problems(model, 4) ==
        std::vector<std::string>{"an inner width of 98 can not be shared by 4 ranks; use 1 or 2, "
                                 "or another width"});
  model.ffn_hidden_size = 0;  // 0 means the default width, 128
  CHECK(layout_problems(model, 4).empty());
  CHECK(layout_problems(model, 12).size() == 1);
}

TEST_CASE("the experts' width counts, and that of layers without experts") {
  ModelConfig model = small_model();
  model.architecture = "mixtral";
  CHECK(layout_problems(model, 4).empty());
  model.ffn_hidden_size = 90;
  CHECK(layout_problems(model, 4) ==
        std::vector<std::string>{"an expert's inner width of 90 can not be shared by 4 ranks; use "
                                 "1 or 2, or another width"});
  model.architecture = "deepseek-v3";
  model.attention_num_kv_heads = 0;
  model.moe.ffn_hidden_size = 24;
  CHECK(layout_problems(model, 4).empty());  // ffn_hidden_size is unused: all layers have experts
  model.moe.first_dense_layers = 1;
  CHECK(layout_problems(model, 4).size() == 1);
}

TEST_CASE("the sizes that ten heads allow are named") {
  const Preset* preset = find_preset("openseek-small");
  REQUIRE(preset != nullptr);
  const std::vector<std::string> problems = layout_problems(preset->model, 8);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] ==
        "10 attention heads can not be shared by 8 ranks; use 1, 2, 5 or 10, of which 1 and 2 fit "
        "the rest of the model");
}

TEST_CASE("ranks that share sequences have two chunks of equal length of each") {
  const auto problems = [](std::int64_t tokens, std::int64_t ranks, std::int64_t tensor) {
    JobConfig job;
    job.model = small_model();
    job.model.sequence_length = tokens;
    job.topology.context_parallel_size = ranks;
    job.topology.tensor_parallel_size = tensor;
    job.topology.sequence_parallel = tensor > 1;
    std::vector<std::string> messages;
    for (const Violation& violation : check_layout(job)) {
      CHECK(violation.rule == "G5");
      messages.push_back(violation.message);
    }
    return messages;
  };
  CHECK(problems(24, 3, 1).empty());
  CHECK(problems(24, 3, 2).empty());
  CHECK(problems(30, 3, 4) ==
        std::vector<std::string>{
            "30 tokens can not be cut into 2 chunks for each of 3 ranks and, as "
            "topology.sequence_parallel asks, equal parts of these for 4; use a sequence length of "
            "24 or 36"});
  CHECK(problems(27, 3, 1) ==
        std::vector<std::string>{"27 tokens can not be cut into 2 chunks for each of 3 ranks; use "
                                 "a sequence length of 24 or 30"});
  CHECK(problems(23, 1, 1).empty());
}

TEST_CASE("ranks that share sequences are of one replica") {
  TopologyConfig topology;
  topology.context_parallel_size = 4;
  topology.tensor_parallel_size = 2;
  CHECK(ranks_of_replica(topology) == 8);
  CHECK(resolve_batch(topology, 16).plan.data_parallel_size == 2);
  const BatchOutcome wrong = resolve_batch(topology, 12);
  REQUIRE(wrong.violations.size() == 1);
  CHECK(wrong.violations[0].rule == "T1");
  CHECK(wrong.violations[0].message ==
        "a replica of the model takes 8 ranks = 2 (tensor_parallel_size) * 4 "
        "(context_parallel_size) * 1 (pipeline_parallel_size), and 12 ranks are no multiple of "
        "that; use 8 or 16 ranks, or sizes whose product divides 12");
  CHECK(layout_text(topology) == "tensor 2, context 4");
}

/// "rule first-key: message" of each violated rule.
std::vector<std::string> broken_by(const JobConfig& job) {
  std::vector<std::string> texts;
  for (const Violation& violation : check_layout(job))
    texts.push_back(std::string(violation.rule) + " " + violation.keys[0] + ": " +
                    violation.message);
  return texts;
}

TEST_CASE(
    "experts are shared out evenly, within a tensor-parallel group, by models that have some") {
  JobConfig job;
  job.model = small_model();
  job.topology.expert_parallel_size = 2;
  CHECK(broken_by(job) ==
        std::vector<std::string>{"G6 topology.expert_parallel_size: llama has no experts that "
                                 "ranks could share; remove it"});
  job.model.architecture = "mixtral";
  job.model.moe.num_experts = 6;
  CHECK(broken_by(job).empty());
  job.topology.expert_parallel_size = 4;
  CHECK(broken_by(job) ==
        std::vector<std::string>{"G6 topology.expert_parallel_size: 6 experts can not be shared "
                                 "out evenly to 4 ranks; use 1, 2, 3 or 6"});
  job.topology.expert_parallel_size = 2;
  job.topology.expert_tensor_parallel_size = 2;
  CHECK(broken_by(job) == std::vector<std::string>{
                              "G6 topology.expert_tensor_parallel_size: 2 ranks that share an "
                              "expert must be of one tensor-parallel group, which has 1; use 1"});
  job.topology.tensor_parallel_size = 4;
  job.model.ffn_hidden_size = 90;  // not divisible by 4, but expert layers are cut only in 2
  CHECK(broken_by(job).empty());
  job.model.ffn_hidden_size = 91;
  CHECK(broken_by(job) ==
        std::vector<std::string>{"G6 topology.expert_tensor_parallel_size: an expert's inner width "
                                 "of 91 can not be shared by 2 ranks; use 1, or another width"});
}

TEST_CASE("full sharding is for models whose experts are where their layers are") {
  JobConfig job;
  job.model = small_model();
  job.model.architecture = "mixtral";
  job.topology.parameter_sharding = "full";
  CHECK(broken_by(job).empty());
  job.topology.expert_parallel_size = 2;
  CHECK(broken_by(job) ==
        std::vector<std::string>{"G9 topology.parameter_sharding: full sharding does not go with "
                                 "experts on ranks of their own; use \"optimizer\", or remove the "
                                 "key of experts"});
  job.topology.expert_parallel_size = 1;
  job.topology.tensor_parallel_size = job.topology.expert_tensor_parallel_size = 2;
  CHECK(broken_by(job).empty());
  job.topology.expert_tensor_parallel_size = 1;
  REQUIRE(broken_by(job).size() == 1);
  CHECK(broken_by(job)[0].starts_with("G9 "));
}

TEST_CASE("experts may have a capacity where ranks share sequences") {
  JobConfig job;
  job.model = small_model();
  job.model.architecture = "mixtral";
  job.model.moe.capacity_factor = 1.25;
  CHECK(broken_by(job).empty());
  job.topology.context_parallel_size = 2;
  CHECK(broken_by(job).empty());
}

TEST_CASE("the ranks of a stage are whole groups with all experts") {
  TopologyConfig topology;
  topology.tensor_parallel_size = 8;
  topology.pipeline_parallel_size = 2;
  topology.expert_parallel_size = 8;
  // A stage has 8 ranks, too few for 8 experts cut in 8 parts each: the default is whole experts.
  CHECK(expert_tensor_size(topology, 16) == 1);
  CHECK(resolve_batch(topology, 16).violations.empty());
  CHECK(expert_tensor_size(topology, 128) == 8);
  topology.expert_tensor_parallel_size = 2;
  const auto found = resolve_batch(topology, 16).violations;
  REQUIRE(found.size() == 1);
  CHECK(found[0].rule == "G7");
  CHECK(found[0].message ==
        "a group that has all experts takes 16 ranks = 8 (expert_parallel_size) * 2 "
        "(expert_tensor_parallel_size), and 8 ranks of a stage are no multiple of that; use sizes "
        "whose product divides 8");
}

TEST_CASE("layers of stages may be given by hand") {
  JobConfig job;
  job.model = small_model();
  job.model.num_layers = 27;
  job.topology.pipeline_parallel_size = 2;
  job.topology.pipeline_stage_layers = {"13", "14"};
  CHECK(broken_by(job).empty());
  CHECK(layers_of_stage(job, 0) == std::vector<LayerRange>{{0, 13}});
  CHECK(layers_of_stage(job, 1) == std::vector<LayerRange>{{13, 27}});
  job.topology.pipeline_stage_layers = {"13", "13"};
  CHECK(broken_by(job) ==
        std::vector<std::string>{"G8 topology.pipeline_stage_layers: its numbers are 26 layers in "
                                 "all, and the model has 27; make them equal"});
  job.topology.pipeline_stage_layers = {"27"};
  CHECK(broken_by(job) ==
        std::vector<std::string>{"G8 topology.pipeline_stage_layers: it has 1 numbers for 2 runs "
                                 "of layers = 2 (pipeline_parallel_size) * 1 "
                                 "(pipeline_interleave); write one for each"});
}

TEST_CASE("gradients of weights can be put off where stages wait and keep what they need") {
  JobConfig job;
  job.model = small_model();
  job.topology.pipeline_parallel_size = 2;
  job.topology.pipeline_schedule = "zero_bubble";
  CHECK(broken_by(job).empty());
  job.topology.parameter_sharding = "optimizer";
  CHECK(broken_by(job).empty());

  job.topology.pipeline_parallel_size = 1;
  CHECK(broken_by(job) ==
        std::vector<std::string>{"G10 topology.pipeline_schedule: it fills the time in which "
                                 "stages wait, and there is no pipeline; remove it, or set "
                                 "pipeline_parallel_size"});
  job.topology.pipeline_parallel_size = 2;
  job.topology.pipeline_interleave = 2;
  job.topology.parameter_sharding = "full";
  job.topology.activation_checkpointing_type = "every_layer";
  CHECK(
      broken_by(job) ==
      std::vector<std::string>{
          "G10 topology.pipeline_schedule: zero_bubble has one run of layers a stage; use "
          "pipeline_interleave = 1, or pipeline_schedule = \"1f1b\"",
          "G10 topology.pipeline_schedule: with \"full\" the gradients of a layer are summed when "
          "its pass ends, so they can not be put off; use parameter_sharding = \"optimizer\", or "
          "pipeline_schedule = \"1f1b\"",
          "G10 topology.pipeline_schedule: recomputed layers keep nothing for gradients that are "
          "put off; use activation_checkpointing_type = \"disabled\", or pipeline_schedule = "
          "\"1f1b\""});
}

}  // namespace
}  // namespace sortie::config
