#include "common/training/model_cost.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace sortie::training {
namespace {

ModelCost some_cost() {
  ModelCost cost;
  cost.version = "1.2.3";
  cost.isa = "avx2";
  cost.architecture = "llama";
  cost.preset = "llama-3.1-8b";
  cost.parameters = 8030261248;
  cost.active_parameters = 7000000000;
  cost.trained_parameters = 1000;
  cost.flops_per_token = 4.8e10;
  cost.threads = 8;
  cost.memory = {{"bf16", {{"weights", 3 << 20}, {"packed_weights", 1 << 20}}},
                 {"f32", {{"weights", 2 << 20}, {"packed_weights", 0}}}};
  cost.bubble = 0.125;
  cost.note = "some in bf16";
  cost.stages = {{{"bf16", 4 << 20, {{"pipeline", 1, 100}, {"replicas", -1, 300}}}},
                 {{"bf16", 5 << 20, {{"pipeline", 0, 200}}}}};
  return cost;
}

}  // namespace

TEST_CASE("what a model costs is read as it was written") {
  const ModelCost cost = some_cost();
  const auto read = parse_model_cost(to_json(cost).dump());
  REQUIRE(read.has_value());
  CHECK(to_json(*read) == to_json(cost));
  CHECK(read->parameters == cost.parameters);
  REQUIRE(read->memory.size() == 2);
  CHECK(read->memory[0].precision == "bf16");  // in the order of the JSON
  CHECK(read->memory[0].total() == 4 << 20);
  CHECK(read->memory[0].part("weights") == 3 << 20);
  CHECK(read->memory[0].part("nothing") == 0);
  CHECK(read->memory[0].on_host() == 4 << 20);
  const ModelCost::Memory gpu{"bf16",
                              {{"weights", 5}, {"snapshot", 2}, {"device", 7}, {"process", 1}}};
  CHECK(gpu.on_host() == 3);
  CHECK(read->stages == cost.stages);
  CHECK(read->bubble == cost.bubble);
  CHECK(read->note == cost.note);
}

TEST_CASE("an answer of another kind is an error or zeros, never a crash") {
  for (const char* text : {"", "[]", "{", "3", "{}", "{\"parameters\": 1}",
                           "{\"parameters\": 1, \"rank_memory_bytes\": 3}",
                           "{\"parameters\": 1, \"rank_memory_bytes\": {}}"}) {
    CAPTURE(std::string(text));
    CHECK_FALSE(parse_model_cost(text).has_value());
  }
  const auto odd = parse_model_cost(
      R"({"parameters": "many", "version": 7, "threads": -3, "flops_per_token": [],
          "rank_memory_bytes": {"f32": 7, "bf16": {"weights": "all", "cached": -5, "packed": 1e300}},
          "stages": [3, {"bf16": 1, "f32": {"memory_bytes": [], "sent": [1, {"peer": "x"}]}}],
          "bubble": "much"})");
  REQUIRE(odd.has_value());
  CHECK(odd->parameters == 0);
  CHECK(odd->version.empty());
  CHECK(odd->threads == 0);
  CHECK(odd->memory[0].parts.empty());
  CHECK(odd->memory[1].total() == 0);
  REQUIRE(odd->stages.size() == 2);
  CHECK(odd->stages[0].empty());
  REQUIRE(odd->stages[1].size() == 1);
  CHECK(odd->stages[1][0] == ModelCost::StageUse{"f32", 0, {{"", 0, 0}}});
  CHECK(odd->bubble == 0.0);
}

TEST_CASE("people read parameters with commas and memory in MiB") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1234567) == "1,234,567");
  CHECK(parameters_text(some_cost()) ==
        "8,030,261,248 parameters, a token meets 7,000,000,000, 1,000 are trained");
  CHECK(memory_table(some_cost()) ==
        "                            bf16         f32\n"
        "    weights                    3           2\n"
        "    packed weights             1           0\n"
        "    total                      4           2\n");
}

}  // namespace sortie::training
