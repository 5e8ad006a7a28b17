// Tests of config.json as transformers 4 and 5 write it.
#include "trainer/hf/config_json.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "common/config/architectures.h"
#include "trainer/hf/tensors.h"
#include "trainer/models/model.h"

namespace sortie::trainer {
namespace {

using Json = nlohmann::json;
using config::ModelConfig;

ModelConfig model_of(const char* text) {
  const auto model = read_hf_config(Json::parse(text), "config.json");
  REQUIRE_MESSAGE(model, (model ? "" : model.error().message));
  return *model;
}
std::string error_of(const char* text) {
  const auto model = read_hf_config(Json::parse(text), "config.json");
  return model ? "no error" : model.error().message;
}

// As published, reduced to the keys that matter.
constexpr const char* kLlama4 = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
  "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "bos_token_id": 128000,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"}})";
constexpr const char* kPythia4 =
    R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"],
  "hidden_act": "gelu", "hidden_size": 512, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
  "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 6, "rotary_emb_base": 10000,
  "rotary_pct": 0.25, "tie_word_embeddings": false, "torch_dtype": "float16", "use_parallel_residual": true,
  "vocab_size": 50304})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "activation_function": "gelu_new",
  "architectures": ["GPT2LMHeadModel"], "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
  "n_positions": 1024, "vocab_size": 50257, "attn_pdrop": 0.1})";
constexpr const char* kQwen4 = R"({"model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
  "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "use_sliding_window": false,
  "vocab_size": 151936})";

}  // namespace

TEST_CASE("configs of transformers 4 give the shapes of the presets, and stay as they are") {
  const std::pair<const char*, const char*> rows[] = {{kLlama4, "llama-3.2-1b"},
                                                      {kPythia4, "pythia-70m"},
                                                      {kGpt2, "gpt2-124m"},
                                                      {kQwen4, "qwen2.5-0.5b"}};
  for (const auto& [text, preset] : rows) {
    CAPTURE(preset);
    const ModelConfig model = model_of(text), &expected = config::find_preset(preset)->model;
    const ModelShape a = resolve_shape(model), b = resolve_shape(expected);
    CHECK(model.architecture == expected.architecture);
    for (const auto member :
         {&ModelShape::vocab_size, &ModelShape::hidden, &ModelShape::layers, &ModelShape::heads,
          &ModelShape::kv_heads, &ModelShape::head_dim, &ModelShape::ffn, &ModelShape::rotary_dims,
          &ModelShape::num_positions})
      CHECK(a.*member == b.*member);
    CHECK(a.tied == b.tied);
    CHECK(model.norm_epsilon == expected.norm_epsilon);
    CHECK(model.rotary_embedding_base == expected.rotary_embedding_base);
    CHECK(model.rope_scaling == expected.rope_scaling);
    CHECK(model.rope_scaling_factor == expected.rope_scaling_factor);
    CHECK(model.attention_window == 0);
    Json json = Json::parse(text);
    REQUIRE(write_hf_config(model, json));
    Json original = Json::parse(text);
    original["architectures"] = json["architectures"];
    CHECK(json == original);
  }
}

TEST_CASE("DeepSeek-V3's config.json as it is published") {
  const char* text = R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1,
    "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "seq_aux": true, "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128,
    "vocab_size": 129280})";
  const ModelConfig model = model_of(text);
  CHECK(model.rope_scaling == "yarn");
  CHECK(model.rope_scaling_factor == 40.0);
  CHECK(model.rope_scaling_high_frequency == 32.0);
  CHECK(model.rope_scaling_low_frequency == 1.0);
  CHECK(model.rope_scaling_mscale_all_dim == 1.0);
  CHECK(model.rope_scaling_original_length == 4096);
  CHECK(model.rotary_embedding_base == 10000.0);
  CHECK(model.mla.q_lora_rank == 1536);
  CHECK(model.moe.num_groups == 8);
  CHECK(model.mtp.num_layers == 1);
  Json json = Json::parse(text);
  REQUIRE(write_hf_config(model, json));
  CHECK(json == Json::parse(text));

  std::string other = text;
  other.replace(other.find("noaux_tc"), 8, "group_limited_greedy");
  CHECK(
      error_of(other.c_str()).find("topk_method is \"group_limited_greedy\", only \"noaux_tc\"") !=
      std::string::npos);
}

TEST_CASE("a fresh config.json has the kinds of numbers that transformers checks for") {
  for (const Family& family : families()) {
    CAPTURE(family.name);
    ModelConfig model;
    model.architecture = family.name;
    model.attention_num_kv_heads = 0;
    if (family.name == "deepseek-v3") model.moe.num_shared_experts = 1;
    Json json;
    const auto written = write_hf_config(model, json);
    REQUIRE_MESSAGE(written, (written ? "" : written.error().message));
    for (const char* key : {"router_jitter_noise", "rms_norm_eps", "layer_norm_epsilon",
                            "layer_norm_eps", "attention_dropout", "attn_pdrop",
                            "initializer_range", "routed_scaling_factor", "router_aux_loss_coef"})
      if (json.contains(key)) CHECK_MESSAGE(json[key].is_number_float(), key);
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_experts_per_tok", "n_group"})
      if (json.contains(key)) CHECK_MESSAGE(json[key].is_number_integer(), key);
  }
  ModelConfig model;
  model.architecture = "deepseek-v3";
  model.moe.num_shared_experts = 0;
  Json json;
  const auto refused = write_hf_config(model, json);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("model.moe.num_shared_experts = 0") != std::string::npos);
}

TEST_CASE("experts without a width of their own are written with that of the MLP") {
  for (const char* name : {"qwen3-moe", "deepseek-v3"}) {
    CAPTURE(name);
    ModelConfig model;
    model.architecture = name;
    model.ffn_hidden_size = 48;
    model.moe.ffn_hidden_size = 0;
    model.moe.num_shared_experts = 1;
    Json json;
    REQUIRE(write_hf_config(model, json));
    CHECK(json["moe_intermediate_size"] == 48);
  }
}

TEST_CASE("a changed model changes its keys in the spelling of the file") {
  ModelConfig model = model_of(kLlama4);
  model.rotary_embedding_base = 1e6;
  model.vocab_size = 1000;
  Json json = Json::parse(kLlama4);
  REQUIRE(write_hf_config(model, json));
  CHECK(json["rope_theta"] == 1e6);
  CHECK(json["rope_scaling"]["rope_type"] == "llama3");
  CHECK_FALSE(json.contains("rope_parameters"));
  CHECK(json["vocab_size"] == 1000);
  CHECK(json["bos_token_id"] == 128000);
  CHECK(json["head_dim"] == 64);
  CHECK(model_of(json.dump().c_str()).rotary_embedding_base == 1e6);

  Json fresh;
  REQUIRE(write_hf_config(model, fresh));
  CHECK(fresh["rope_parameters"]["rope_theta"] == 1e6);
  CHECK(fresh["model_type"] == "llama");
  CHECK(model_of(fresh.dump().c_str()).rope_scaling_original_length == 8192);
}

TEST_CASE("every preset comes back from its own config.json") {
  for (const config::Preset& preset : config::presets()) {
    CAPTURE(preset.name);
    Json json;
    REQUIRE(write_hf_config(preset.model, json));
    const ModelConfig model = model_of(json.dump().c_str());
    Json again;
    REQUIRE(write_hf_config(model, again));
    CHECK(again == json);
  }
}

TEST_CASE("windows: GPT-Neo's kinds, Mistral's window, Qwen's layers") {
  const auto windows = [](const ModelConfig& model) {
    std::vector<std::int64_t> all;
    for (std::int64_t layer = 0; layer < model.num_layers; ++layer)
      all.push_back(config::window_of_layer(model, layer));
    return all;
  };
  using List = std::vector<std::int64_t>;
  CHECK(windows(model_of(
            R"({"model_type": "gpt_neo", "num_layers": 3, "hidden_size": 64, "num_heads": 4,
    "attention_types": [[["local", "global"], 1], [["local"], 1]], "window_size": 9})")) ==
        List{9, 0, 9});
  CHECK(windows(model_of(R"({"model_type": "gpt_neo"})")).size() == 24);
  CHECK(windows(model_of(
            R"({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 7})")) ==
        List{7, 7});
  CHECK(windows(model_of(
            R"({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": null})")) ==
        List{0, 0});
  // If the key is absent, the window is 4096, as in transformers.
  CHECK(windows(model_of(R"({"model_type": "mistral", "num_hidden_layers": 1})")) == List{4096});
  const char* qwen = R"({"model_type": "qwen2", "num_hidden_layers": 3, "use_sliding_window": true,
    "sliding_window": 5, "max_window_layers": 2})";
  CHECK(windows(model_of(qwen)) == List{0, 0, 5});
  CHECK(windows(
            model_of(R"({"model_type": "qwen3", "num_hidden_layers": 2, "use_sliding_window": true,
    "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]})")) == List{5, 0});
  ModelConfig mixed = model_of(qwen);
  mixed.architecture = "mistral";
  Json json;
  CHECK_FALSE(write_hf_config(mixed, json));
}

TEST_CASE(
    "activations: other names of the same function are read, other functions refused by name") {
  for (const Family& family : families()) {
    const bool gpt = family.name == "gpt2" || family.name == "gpt-neo";
    const std::string key = gpt ? "activation_function" : "hidden_act";
    std::vector<std::string> known = {"silu", "swish"};
    if (gpt) known = {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"};
    if (family.name == "gpt-neo-x") known = {"gelu"};
    for (const char* name : {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu",
                             "swish", "quick_gelu", ""}) {
      CAPTURE(family.name);
      CAPTURE(name);
      const std::string text = Json{{"model_type", family.hf.model_type}, {key, name}}.dump();
      const std::string error = error_of(text.c_str());
      if (std::ranges::find(known, name) != known.end())
        CHECK(error == "no error");
      else
        CHECK(error == "config.json: " + key + " is \"" + name + "\", only \"" + known[0] +
                           "\" is implemented");
    }
  }
}

TEST_CASE("what is not implemented or not well formed is refused, all of it at once") {
  CHECK(error_of("[]").find("not a JSON object") != std::string::npos);
  CHECK(error_of(R"({"model_type": "bert"})")
            .find("model_type \"bert\" is not known; these are: gpt2, ") != std::string::npos);
  CHECK(error_of("{}").find("model_type is absent") != std::string::npos);
  const std::string many =
      error_of(R"({"model_type": "llama", "hidden_act": "relu", "hidden_size": "big",
    "attention_bias": true, "rope_scaling": {"rope_type": "longrope"}, "tie_word_embeddings": 1})");
  for (const char* part : {"hidden_act is \"relu\", only \"silu\" is implemented",
                           "hidden_size is \"big\", not a whole number",
                           "attention_bias is true, only false is implemented",
                           "rope_type longrope is not implemented",
                           "tie_word_embeddings is 1, neither true nor false"})
    CHECK(many.find(part) != std::string::npos);
  CHECK(error_of(R"({"model_type": "llama", "num_hidden_layers": 0})").find("model.num_layers") !=
        std::string::npos);
  CHECK(
      error_of(R"({"model_type": "gpt2", "n_embd": 10, "n_head": 3})").find("model.hidden_size") !=
      std::string::npos);
  CHECK(error_of(R"({"model_type": "llama", "num_attention_heads": 0})") != "no error");
  CHECK(error_of(R"({"model_type": "gpt_neo", "attention_types": [[["global"], 1e9]]})") !=
        "no error");
  CHECK(error_of(R"({"model_type": "qwen2", "num_hidden_layers": 2, "layer_types": [1, 2]})") !=
        "no error");
  // Sizes that only a malicious file has.
  for (const char* layers :
       {"-5", "1000000000000000", "9223372036854775807", "18446744073709551615"})
    for (const char* type : {"gpt_neo", "qwen2", "mistral"}) {
      CAPTURE(layers);
      CAPTURE(type);
      const std::string key =
          std::string_view(type) == "gpt_neo" ? "num_layers" : "num_hidden_layers";
      const std::string text = std::string("{\"model_type\": \"") + type + "\", \"" + key +
                               "\": " + layers + ", \"use_sliding_window\": true}";
      CHECK(error_of(text.c_str()).find("model.num_layers") != std::string::npos);
    }
  // Numbers that do not fit an integer, or are not integers.
  for (const char* window : {"1e300", "-1e300", "18446744073709551615", "7.5", "true"}) {
    CAPTURE(window);
    const std::string end = std::string(window) + ", \"use_sliding_window\": true}";
    for (const char* begin : {R"({"model_type": "gpt_neo", "window_size": )",
                              R"({"model_type": "mistral", "sliding_window": )",
                              R"({"model_type": "qwen2", "sliding_window": )"})
      CHECK(error_of((begin + end).c_str()).find("window") != std::string::npos);
  }
  CHECK(
      error_of(R"({"model_type": "llama", "head_dim": 65536, "max_position_embeddings": 16777216})")
          .find("more than a RoPE table holds") != std::string::npos);
}

TEST_CASE("presets have the published numbers of parameters") {
  const std::pair<const char*, std::int64_t> rows[] = {
      {"gpt2-124m", 124'439'808},      {"gpt2-355m", 354'823'168},
      {"gpt2-774m", 774'030'080},      {"gpt2-1.5b", 1'557'611'200},
      {"pythia-70m", 70'426'624},      {"pythia-160m", 162'322'944},
      {"pythia-410m", 405'334'016},    {"pythia-1b", 1'011'781'632},
      {"pythia-1.4b", 1'414'647'808},  {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.1-8b", 8'030'261'248}, {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304}};
  for (const auto& [name, expected] : rows) {
    CAPTURE(name);
    ModelConfig model = config::find_preset(name)->model;
    model.num_positions = resolve_shape(model).num_positions;
    model.sequence_length = 8;
    ExecutionContext context(1);
    ParameterStore store;  // declared only: allocates no memory
    const LanguageModel declared(context, model, store, false);
    std::int64_t total = 0;
    for (const HfTensor& tensor :
         hf_tensors(family_of(model.architecture), declared.shape(), store))
      total += tensor.rows * tensor.cols;
    CHECK(total == expected);
  }
}

}  // namespace sortie::trainer
