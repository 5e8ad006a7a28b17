// Attention windows in config.json: which layers have one, and how wide it is.
#include <fmt/format.h>

#include "common/config/architectures.h"
#include "trainer/models/hf_format.h"
#include "trainer/models/hf_json.h"

namespace sortie::trainer {
namespace {

using Json = nlohmann::json;
using config::ModelConfig;

/// Returns, by layer, whether it is local.
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

/// Expands [[["global", "local"], 12]]: the list, repeated that many times.
Result<std::vector<bool>> expand(const Json& types) {
  std::vector<bool> local;
  const auto bad = [&] {
    return std::unexpected(config_problem(
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
  const Json* types = find_value(json, "attention_types");
  SORTIE_ASSIGN_OR_RETURN(const std::vector<bool> local,
                          expand(types != nullptr ? *types : kDefault));
  if (static_cast<std::int64_t>(local.size()) != model.num_layers)
    return std::unexpected(config_problem(fmt::format(
        "attention_types names {} layers, num_layers is {}", local.size(), model.num_layers)));
  model.attention_window = 256;
  if (!read_number(find_value(json, "window_size"), model.attention_window) ||
      model.attention_window < 1)
    return std::unexpected(config_problem("window_size is no positive whole number"));
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
  json.erase("attention_layers");  // transformers derives it from attention_types
  json["attention_types"] = Json::array({Json::array({kinds, 1})});
  return {};
}

/// `absent`: the window if the key is absent.
Result<> read_window(const Json& json, ModelConfig& model, std::int64_t absent) {
  model.attention_layers.clear();
  model.attention_window = json.contains("sliding_window") ? 0 : absent;
  if (!read_number(find_value(json, "sliding_window"), model.attention_window) ||
      model.attention_window < 0)
    return std::unexpected(config_problem("sliding_window is neither null nor a whole number"));
  return {};
}
Result<> read_mistral_window(const Json& json, ModelConfig& model) {
  return read_window(json, model, 4096);
}
Result<> read_mixtral_window(const Json& json, ModelConfig& model) {
  return read_window(json, model, 0);
}

Result<> write_window(const ModelConfig& model, Json& json) {
  const std::vector<bool> local = local_layers(model);
  const auto count = static_cast<std::size_t>(std::ranges::count(local, true));
  if (count != 0 && count != local.size())
    return std::unexpected(config_problem(
        fmt::format("model.attention_layers: {} of transformers has the window in all layers or in "
                    "none",
                    model.architecture)));
  json["sliding_window"] = count > 0 ? Json(model.attention_window) : Json();
  return {};
}

Result<> read_layer_types(const Json& json, ModelConfig& model) {
  const auto bad = [] {
    return std::unexpected(
        config_problem("use_sliding_window, sliding_window, max_window_layers or "
                       "layer_types is of the wrong kind"));
  };
  std::vector<bool> local(static_cast<std::size_t>(std::max<std::int64_t>(0, model.num_layers)));
  bool use = false;
  std::int64_t window = 4096, first = 28;
  if (const Json* value = find_value(json, "use_sliding_window")) {
    if (!value->is_boolean()) return bad();
    use = value->get<bool>();
  }
  if (!read_number(find_value(json, "sliding_window"), window) ||
      !read_number(find_value(json, "max_window_layers"), first))
    return bad();
  if (json.contains("sliding_window") && json["sliding_window"].is_null()) use = false;
  if (const Json* types = find_value(json, "layer_types")) {
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

const HfPart kHfGptNeoLayers{read_gpt_neo_layers, write_gpt_neo_layers};
const HfPart kHfMistralWindow{read_mistral_window, write_window};
const HfPart kHfMixtralWindow{read_mixtral_window, write_window};
const HfPart kHfLayerTypes{read_layer_types, write_layer_types};

}  // namespace sortie::trainer
