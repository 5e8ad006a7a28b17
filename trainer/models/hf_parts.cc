// The parts of config.json that are no plain keys: RoPE, and which layers see a window.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "common/config/architectures.h"
#include "trainer/models/hf_format.h"

namespace sortie::trainer {
namespace {

using Json = nlohmann::json;
using config::ModelConfig;

Error problem(std::string text) {
  return {ErrorCode::unsupported, std::move(text)};
}

const Json* find(const Json& json, std::string_view key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

/// Sets `out` from a number, a whole one from a whole one; false when it is something else.
template <class T>
bool number(const Json* value, T& out) {
  if (value == nullptr) return true;
  if (std::is_integral_v<T> ? !value->is_number_integer() : !value->is_number()) return false;
  out = value->get<T>();
  return true;
}

/// transformers 5 has rope_parameters, 4 has rope_theta (GPT-NeoX: rotary_emb_base, rotary_pct)
/// beside rope_scaling.
Result<> read_rope(const Json& json, ModelConfig& model, double default_share) {
  const Json* parameters = find(json, "rope_parameters");
  if (parameters == nullptr) parameters = find(json, "rope_scaling");
  static const Json kNone = Json::object();
  const Json& rope = parameters != nullptr ? *parameters : kNone;
  if (!rope.is_object())
    return std::unexpected(
        problem(fmt::format("rope parameters are {}, not an object", rope.dump())));
  model.rotary_embedding_base = 10000.0;
  model.rotary_percentage = default_share;
  bool good = true;
  for (const char* key : {"rotary_emb_base", "rope_theta"})
    good = good && number(find(json, key), model.rotary_embedding_base);
  good = good && number(find(rope, "rope_theta"), model.rotary_embedding_base);
  for (const char* key : {"rotary_pct", "partial_rotary_factor"})
    good = good && number(find(json, key), model.rotary_percentage);
  good = good && number(find(rope, "partial_rotary_factor"), model.rotary_percentage);

  const Json* type = find(rope, "rope_type");
  if (type == nullptr) type = find(rope, "type");
  const std::string name = type == nullptr     ? "default"
                           : type->is_string() ? type->get<std::string>()
                                               : type->dump();
  if (name != "default" && name != "linear" && name != "llama3" && name != "yarn")
    return std::unexpected(problem(fmt::format(
        "rope_type {} is not implemented; default, linear, llama3 and yarn are", name)));
  model.rope_scaling = name == "default" ? "none" : name;
  if (name != "default") good = good && number(find(rope, "factor"), model.rope_scaling_factor);
  if (name == "llama3")
    good =
        good && number(find(rope, "low_freq_factor"), model.rope_scaling_low_frequency) &&
        number(find(rope, "high_freq_factor"), model.rope_scaling_high_frequency) &&
        number(find(rope, "original_max_position_embeddings"), model.rope_scaling_original_length);
  if (name == "yarn") {
    model.rope_scaling_high_frequency = 32.0;
    model.rope_scaling_low_frequency = 1.0;
    good =
        good && number(find(rope, "beta_slow"), model.rope_scaling_low_frequency) &&
        number(find(rope, "beta_fast"), model.rope_scaling_high_frequency) &&
        number(find(rope, "mscale"), model.rope_scaling_mscale) &&
        number(find(rope, "mscale_all_dim"), model.rope_scaling_mscale_all_dim) &&
        number(find(rope, "original_max_position_embeddings"), model.rope_scaling_original_length);
    if (find(rope, "attention_factor") != nullptr || rope.value("truncate", true) != true)
      return std::unexpected(
          problem("RoPE: attention_factor and truncate = false of yarn are not implemented"));
  }
  if (!good)
    return std::unexpected(
        problem(fmt::format("RoPE: a value in {} is not a number", rope.dump())));
  return {};
}

Json rope_values(const ModelConfig& model) {
  const std::string type = model.rope_scaling == "none" ? "default" : model.rope_scaling;
  Json rope = {{"rope_type", type}};
  if (type != "default") rope["factor"] = model.rope_scaling_factor;
  if (type == "llama3") {
    rope["low_freq_factor"] = model.rope_scaling_low_frequency;
    rope["high_freq_factor"] = model.rope_scaling_high_frequency;
    rope["original_max_position_embeddings"] = model.rope_scaling_original_length;
  }
  if (type == "yarn") {
    rope["beta_slow"] = model.rope_scaling_low_frequency;
    rope["beta_fast"] = model.rope_scaling_high_frequency;
    rope["original_max_position_embeddings"] = model.rope_scaling_original_length;
    if (model.rope_scaling_mscale != 0) rope["mscale"] = model.rope_scaling_mscale;
    if (model.rope_scaling_mscale_all_dim != 0)
      rope["mscale_all_dim"] = model.rope_scaling_mscale_all_dim;
  }
  return rope;
}

void write_rope_as(const ModelConfig& model, Json& json, double default_share) {
  ModelConfig old;
  const bool described = json.contains("rope_parameters") || json.contains("rope_theta") ||
                         json.contains("rotary_pct") || json.contains("rope_scaling");
  if (described && read_rope(json, old, default_share) &&
      old.rotary_embedding_base == model.rotary_embedding_base &&
      old.rotary_percentage == model.rotary_percentage && rope_values(old) == rope_values(model))
    return;
  const bool version4 = described && !json.contains("rope_parameters");
  Json rope = rope_values(model);
  const bool partial = default_share != 1.0;
  for (const char* key : {"rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base",
                          "rotary_pct", "partial_rotary_factor"})
    json.erase(key);
  if (version4) {
    json[partial ? "rotary_emb_base" : "rope_theta"] = model.rotary_embedding_base;
    if (partial) json["rotary_pct"] = model.rotary_percentage;
    json["rope_scaling"] = model.rope_scaling == "none" ? Json() : rope;
    return;
  }
  rope["rope_theta"] = model.rotary_embedding_base;
  if (partial) rope["partial_rotary_factor"] = model.rotary_percentage;
  json["rope_parameters"] = std::move(rope);
}

Result<> read_full_rope(const Json& json, ModelConfig& model) {
  return read_rope(json, model, 1.0);
}
Result<> write_full_rope(const ModelConfig& model, Json& json) {
  if (model.rotary_percentage != 1.0)
    return std::unexpected(
        problem(fmt::format("model.rotary_percentage = {}: {} of transformers "
                            "rotates whole heads",
                            model.rotary_percentage, model.architecture)));
  write_rope_as(model, json, 1.0);
  return {};
}
Result<> read_partial_rope(const Json& json, ModelConfig& model) {
  return read_rope(json, model, 0.25);
}
Result<> write_partial_rope(const ModelConfig& model, Json& json) {
  write_rope_as(model, json, 0.25);
  return {};
}

/// Which layers are local, one by one.
std::vector<bool> local_layers(const ModelConfig& model) {
  std::vector<bool> local;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer)
    local.push_back(config::window_of_layer(model, layer) > 0);
  return local;
}

void set_layers(ModelConfig& model, const std::vector<bool>& local, std::int64_t window) {
  const auto count = static_cast<std::size_t>(std::ranges::count(local, true));
  model.attention_window = count > 0 ? window : 0;
  model.attention_layers.clear();
  if (count == 0 || count == local.size()) return;
  for (const bool one : local) model.attention_layers.emplace_back(one ? "local" : "global");
}

/// [[["global", "local"], 12]]: the list, as many times.
Result<std::vector<bool>> expand(const Json& types) {
  std::vector<bool> local;
  const auto bad = [&] {
    return std::unexpected(problem(
        fmt::format("attention_types is {}, not a list of [[\"global\" or \"local\", ...], times]",
                    types.dump())));
  };
  if (!types.is_array()) return bad();
  for (const Json& item : types) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_array() || item[0].empty() ||
        !item[1].is_number_unsigned() || item[1].get<std::uint64_t>() > 65536)
      return bad();
    for (std::uint64_t i = 0; i < item[1].get<std::uint64_t>(); ++i)
      for (const Json& kind : item[0]) {
        if (kind != "global" && kind != "local") return bad();
        if (local.size() > 65536) return bad();
        local.push_back(kind == "local");
      }
  }
  return local;
}

Result<> read_gpt_neo_layers(const Json& json, ModelConfig& model) {
  static const Json kDefault = Json::array({Json::array({Json::array({"global", "local"}), 12u})});
  const Json* types = find(json, "attention_types");
  SORTIE_ASSIGN_OR_RETURN(const std::vector<bool> local,
                          expand(types != nullptr ? *types : kDefault));
  if (static_cast<std::int64_t>(local.size()) != model.num_layers)
    return std::unexpected(problem(fmt::format("attention_types names {} layers, num_layers is {}",
                                               local.size(), model.num_layers)));
  model.attention_window = 256;
  if (!number(find(json, "window_size"), model.attention_window) || model.attention_window < 1)
    return std::unexpected(problem("window_size is no positive whole number"));
  model.attention_layers.clear();
  if (local_layers(model) != local)
    for (const bool one : local) model.attention_layers.emplace_back(one ? "local" : "global");
  return {};
}

Result<> write_gpt_neo_layers(const ModelConfig& model, Json& json) {
  ModelConfig old = model;
  json["window_size"] = model.attention_window == 0 ? 256 : model.attention_window;
  if (json.contains("attention_types") && read_gpt_neo_layers(json, old) &&
      local_layers(old) == local_layers(model))
    return {};
  Json kinds = Json::array();
  for (const bool one : local_layers(model)) kinds.push_back(one ? "local" : "global");
  json.erase("attention_layers");  // transformers expands the types
  json["attention_types"] = Json::array({Json::array({kinds, 1})});
  return {};
}

Result<> read_sliding_window(const Json& json, ModelConfig& model) {
  model.attention_layers.clear();
  model.attention_window = json.contains("sliding_window") ? 0 : 4096;
  if (!number(find(json, "sliding_window"), model.attention_window) || model.attention_window < 0)
    return std::unexpected(problem("sliding_window is neither null nor a whole number"));
  return {};
}

Result<> write_sliding_window(const ModelConfig& model, Json& json) {
  const std::vector<bool> local = local_layers(model);
  const auto count = static_cast<std::size_t>(std::ranges::count(local, true));
  if (count != 0 && count != local.size())
    return std::unexpected(
        problem("model.attention_layers: mistral of transformers has the window "
                "in all layers or in none"));
  json["sliding_window"] = count > 0 ? Json(model.attention_window) : Json();
  return {};
}

Result<> read_layer_types(const Json& json, ModelConfig& model) {
  const auto bad = [] {
    return std::unexpected(
        problem("use_sliding_window, sliding_window, max_window_layers or "
                "layer_types is of the wrong kind"));
  };
  std::vector<bool> local(static_cast<std::size_t>(std::max<std::int64_t>(0, model.num_layers)));
  bool use = false;
  std::int64_t window = 4096, first = 28;
  if (const Json* value = find(json, "use_sliding_window")) {
    if (!value->is_boolean()) return bad();
    use = value->get<bool>();
  }
  if (!number(find(json, "sliding_window"), window) ||
      !number(find(json, "max_window_layers"), first))
    return bad();
  if (json.contains("sliding_window") && json["sliding_window"].is_null()) use = false;
  if (const Json* types = find(json, "layer_types")) {
    if (!types->is_array() || types->size() != local.size()) return bad();
    for (std::size_t i = 0; i < local.size(); ++i) {
      if ((*types)[i] != "full_attention" && (*types)[i] != "sliding_attention") return bad();
      local[i] = use && (*types)[i] == "sliding_attention";
    }
  } else {
    for (std::size_t i = 0; i < local.size(); ++i)
      local[i] = use && static_cast<std::int64_t>(i) >= first;
  }
  if (use && window < 1) return bad();
  set_layers(model, local, window);
  return {};
}

Result<> write_layer_types(const ModelConfig& model, Json& json) {
  ModelConfig old = model;
  const std::vector<bool> local = local_layers(model);
  if (json.contains("use_sliding_window") && read_layer_types(json, old) &&
      local_layers(old) == local && old.attention_window == model.attention_window)
    return {};
  const bool any = std::ranges::count(local, true) > 0;
  json["use_sliding_window"] = any;
  json["sliding_window"] = any ? Json(model.attention_window) : Json();
  Json types = Json::array();
  for (const bool one : local) types.push_back(one ? "sliding_attention" : "full_attention");
  json["layer_types"] = std::move(types);
  json["max_window_layers"] = std::ranges::find(local, true) - local.begin();
  return {};
}

}  // namespace

const HfPart kHfRope{read_full_rope, write_full_rope};
const HfPart kHfPartialRope{read_partial_rope, write_partial_rope};
const HfPart kHfGptNeoLayers{read_gpt_neo_layers, write_gpt_neo_layers};
const HfPart kHfSlidingWindow{read_sliding_window, write_sliding_window};
const HfPart kHfLayerTypes{read_layer_types, write_layer_types};

}  // namespace sortie::trainer
