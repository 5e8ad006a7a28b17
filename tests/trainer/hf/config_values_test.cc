// Tests of config.json with keys that are absent, null or of another type.
#include <doctest/doctest.h>

#include "common/config/architectures.h"
#include "tests/trainer/hf/folders.h"
#include "trainer/hf/config_json.h"
#include "trainer/models/shape.h"

namespace sortie::trainer {
using namespace test;
namespace {

using config::ModelConfig;

ModelConfig parsed(const Json& json) {
  const auto model = read_hf_config(json, "config.json");
  REQUIRE_MESSAGE(model, (model ? "" : model.error().message));
  return *model;
}
std::string refusal(const Json& json) {
  const auto model = read_hf_config(json, "config.json");
  return model ? "no error" : model.error().message;
}
bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

/// Returns a LLaMA config with these parameters of RoPE, as transformers 4 or 5 writes it.
Json with_rope(Json rope, bool version5) {
  Json json = {{"model_type", "llama"}, {"max_position_embeddings", 32768}};
  json[version5 ? "rope_parameters" : "rope_scaling"] = std::move(rope);
  return json;
}

/// Every kind of value that a key can have, and some that it can not have.
std::vector<Json> odd_values() {
  std::vector<Json> all;
  for (const char* text : {"null",
                           "true",
                           "false",
                           "-1",
                           "0",
                           "3",
                           "7.5",
                           "1e300",
                           "-1e300",
                           "9223372036854775807",
                           "18446744073709551615",
                           "\"\"",
                           "\"yarn\"",
                           "[]",
                           "[1]",
                           "[null]",
                           "[[\"global\"], 2]",
                           "[{}]",
                           "{}",
                           "{\"a\": 1}"})
    all.push_back(Json::parse(text));
  return all;
}

/// Reads a config and writes what was read. Either may fail; neither may throw.
void try_it(const Json& json) {
  CAPTURE(json.dump());
  CHECK_NOTHROW([&] {
    const auto model = read_hf_config(json, "config.json");
    if (!model) return;
    Json again = json;
    (void)write_hf_config(*model, again);
  }());
}

}  // namespace

TEST_CASE("absent keys have the defaults of their family in transformers") {
  struct Row {
    const char* type;
    std::int64_t hidden, layers, heads, kv_heads, ffn, positions, window;
    double base, epsilon;
  };
  const Row rows[] = {
      {"llama", 4096, 32, 32, 32, 11008, 2048, 0, 1e4, 1e-6},
      {"mistral", 4096, 32, 32, 8, 14336, 131072, 4096, 1e4, 1e-6},
      {"mixtral", 4096, 32, 32, 8, 14336, 131072, 0, 1e6, 1e-5},
      {"qwen2", 4096, 32, 32, 32, 22016, 32768, 0, 1e4, 1e-6},
      {"qwen3", 4096, 32, 32, 32, 22016, 32768, 0, 1e4, 1e-6},
      {"qwen3_moe", 2048, 24, 32, 4, 6144, 32768, 0, 1e4, 1e-6},
      {"gpt_neox", 6144, 44, 64, 64, 24576, 2048, 0, 1e4, 1e-5},
  };
  for (const Row& row : rows) {
    CAPTURE(row.type);
    const ModelConfig model = parsed({{"model_type", row.type}});
    const ModelShape shape = resolve_shape(model);
    CHECK(model.hidden_size == row.hidden);
    CHECK(model.num_layers == row.layers);
    CHECK(model.num_attention_heads == row.heads);
    CHECK(shape.kv_heads == row.kv_heads);
    CHECK(shape.ffn == row.ffn);
    CHECK(model.num_positions == row.positions);
    CHECK(config::window_of_layer(model, 0) == row.window);
    CHECK(model.rotary_embedding_base == row.base);
    CHECK(model.norm_epsilon == row.epsilon);
    // The config that is written has the same values.
    Json json;
    REQUIRE(write_hf_config(model, json));
    CHECK(json["rope_parameters"]["rope_theta"] == row.base);
    CHECK(config::window_of_layer(parsed(json), 0) == row.window);
  }
  CHECK(parsed({{"model_type", "mixtral"}, {"sliding_window", 7}}).attention_window == 7);
  CHECK(parsed({{"model_type", "mixtral"}, {"rope_theta", 5e5}}).rotary_embedding_base == 5e5);
}

TEST_CASE("RoPE: a number that its type needs is there, or the file is refused by the key") {
  for (const bool version5 : {false, true}) {
    CAPTURE(version5);
    const std::vector<std::pair<Json, const char*>> rows = {
        {{{"rope_type", "linear"}}, "rope_type linear needs factor, which is absent"},
        {{{"rope_type", "linear"}, {"factor", nullptr}}, "needs factor, which is null"},
        {{{"rope_type", "linear"}, {"factor", "2"}}, "RoPE: factor is \"2\", not a number"},
        {{{"rope_type", "yarn"}}, "rope_type yarn needs factor, which is absent"},
        {{{"rope_type", "yarn"}, {"factor", nullptr}},
         "rope_type yarn needs factor, which is null"},
        {{{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", nullptr}}, "truncate is null"},
        {{{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", false}}, "truncate is false"},
        {{{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", "yes"}}, "truncate is \"yes\""},
        {{{"rope_type", "yarn"}, {"factor", 4.0}, {"attention_factor", 1.5}},
         "attention_factor is 1.5"},
        {{{"full_attention", {{"rope_type", "linear"}}}}, "single kinds of layers"}};
    for (const auto& [rope, message] : rows) {
      CAPTURE(rope.dump());
      CHECK_MESSAGE(contains(refusal(with_rope(rope, version5)), message),
                    refusal(with_rope(rope, version5)));
    }
    const Json llama3 = {{"rope_type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 8192}};
    CHECK(refusal(with_rope(llama3, version5)) == "no error");
    for (const auto& [key, value] : llama3.items()) {
      if (key == "rope_type") continue;
      CAPTURE(key);
      Json rope = llama3;
      rope[key] = nullptr;
      CHECK(
          contains(refusal(with_rope(rope, version5)), "llama3 needs " + key + ", which is null"));
      rope.erase(key);
      CHECK(contains(refusal(with_rope(rope, version5)),
                     "llama3 needs " + key + ", which is absent"));
    }
  }
}

TEST_CASE("RoPE: yarn takes the positions where the length of the pretraining is absent") {
  const auto yarn = [](Json more) {
    Json rope = {{"rope_type", "yarn"}};
    rope.update(more);
    return parsed(with_rope(rope, true));
  };
  for (const Json& more :
       {Json{{"factor", 4.0}}, {{"factor", 4.0}, {"original_max_position_embeddings", nullptr}}}) {
    const ModelConfig model = yarn(more);
    CHECK(model.rope_scaling_original_length == 32768);
    CHECK(model.rope_scaling_factor == 4.0);
    Json json = with_rope({{"rope_type", "yarn"}, {"factor", 4.0}}, true);
    const Json before = json;
    REQUIRE(write_hf_config(model, json));
    // Unchanged, because it has the same meaning.
    CHECK(json["rope_parameters"] == before["rope_parameters"]);
  }
  CHECK(yarn({{"factor", 4.0}, {"original_max_position_embeddings", 8192}})
            .rope_scaling_original_length == 8192);
  // If the factor is absent, it is the ratio of the two lengths.
  CHECK(yarn({{"original_max_position_embeddings", 4096}}).rope_scaling_factor == 8.0);
  CHECK(
      yarn({{"factor", nullptr}, {"original_max_position_embeddings", 4096}}).rope_scaling_factor ==
      8.0);
  CHECK(yarn({{"factor", 2.0}, {"truncate", true}, {"attention_factor", nullptr}})
            .rope_scaling_factor == 2.0);
  // The original length may be a top-level key of the file.
  Json json = with_rope({{"rope_type", "yarn"}, {"factor", 4.0}}, true);
  json["original_max_position_embeddings"] = 2048;
  CHECK(parsed(json).rope_scaling_original_length == 2048);
}

TEST_CASE("RoPE: rope_scaling and rope_parameters in one file must mean the same") {
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const auto both = [](Json version4, Json version5) {
    Json json = with_rope(std::move(version5), true);
    json["rope_scaling"] = std::move(version4);
    return json;
  };
  // What is empty says nothing.
  for (const Json& none : {Json(), Json::object()}) {
    CHECK(parsed(both(yarn, none)).rope_scaling == "yarn");
    CHECK(parsed(both(none, yarn)).rope_scaling == "yarn");
  }
  Json json = both({{"type", "yarn"}, {"factor", 4}}, yarn);
  CHECK(parsed(json).rope_scaling_factor == 4.0);
  const Json before = json;
  REQUIRE(write_hf_config(parsed(json), json));
  CHECK(json["rope_scaling"] == before["rope_scaling"]);
  CHECK(json["rope_parameters"] == before["rope_parameters"]);

  CHECK(
      refusal(both({{"type", "linear"}, {"factor", 2}}, yarn)) ==
      "config.json: rope_scaling is {\"factor\":2,\"type\":\"linear\"} and rope_parameters is "
      "{\"factor\":4.0,\"rope_type\":\"yarn\"}, which mean different models; keep the one that the "
      "model was trained with");
  // transformers takes the base from the same place as the rest.
  Json based = {{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 1e6}};
  CHECK(contains(refusal(both(yarn, based)), "which mean different models"));
  Json beside = both(yarn, based);
  beside["rope_theta"] = 1e6;
  CHECK(parsed(beside).rotary_embedding_base == 1e6);
}

TEST_CASE("no type of any value in config.json throws") {
  const std::vector<Json> all = odd_values();
  for (const auto& folder : fs::directory_iterator(kData)) {
    const Json original = json_of(folder.path() / "config.json");
    std::vector<std::string> keys = {"rope_parameters",
                                     "rope_scaling",
                                     "rope_theta",
                                     "rotary_emb_base",
                                     "rotary_pct",
                                     "partial_rotary_factor",
                                     "original_max_position_embeddings",
                                     "sliding_window",
                                     "use_sliding_window",
                                     "max_window_layers",
                                     "layer_types",
                                     "attention_types",
                                     "window_size",
                                     "mlp_only_layers",
                                     "output_router_logits",
                                     "num_local_experts"};
    for (const auto& [key, value] : original.items()) keys.push_back(key);
    for (const Family& family : families()) {
      if (original["model_type"] != family.hf.model_type) continue;
      for (const HfKey& key : family.hf.keys) keys.emplace_back(key.name);
      for (const HfFixed& fixed : family.hf.fixed) keys.emplace_back(fixed.name);
    }
    for (const std::string& key : keys)
      for (const Json& value : all) {
        Json json = original;
        json[key] = value;
        try_it(json);
      }
    for (const char* place : {"rope_parameters", "rope_scaling"})
      for (const char* type : {"default", "linear", "llama3", "yarn"})
        for (const char* key :
             {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "truncate",
              "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
              "beta_slow", "beta_fast", "mscale", "mscale_all_dim", "attention_factor"})
          for (const Json& value : all) {
            Json json = original;
            json.erase("rope_parameters");
            Json rope = {{"rope_type", type},
                         {"factor", 2.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 20}};
            rope[key] = value;
            json[place] = std::move(rope);
            try_it(json);
          }
  }
}

}  // namespace sortie::trainer
