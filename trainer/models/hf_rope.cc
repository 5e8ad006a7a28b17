// RoPE in config.json. transformers 5 has rope_parameters, 4 has rope_theta (GPT-NeoX:
// rotary_emb_base, rotary_pct) and rope_scaling.
#include <fmt/format.h>

#include <algorithm>

#include "trainer/models/hf_format.h"
#include "trainer/models/hf_json.h"

namespace sortie::trainer {
namespace {

using Json = nlohmann::json;
using config::ModelConfig;

/// The defaults of transformers for a family, for absent keys.
struct RopeDefaults {
  double base = 10000.0, share = 1.0;
};
constexpr RopeDefaults kFullRope{};
constexpr RopeDefaults kPartialRope{.share = 0.25};
constexpr RopeDefaults kMixtralRope{.base = 1e6};

/// Reads numbers of RoPE; keeps the message about the first bad one.
class RopeNumbers {
 public:
  /// Leaves `out` unchanged if there is no value.
  template <class T>
  void take(const Json& json, const char* key, T& out) {
    const Json* value = find_value(json, key);
    if (!read_number(value, out))
      note(fmt::format("RoPE: {} is {}, not a {}number", key, value->dump(),
                       std::is_integral_v<T> ? "whole " : ""));
  }
  /// Reads a number that has no default in transformers.
  template <class T>
  void require(const Json& rope, const char* key, const std::string& type, T& out) {
    if (find_value(rope, key) == nullptr)
      return note(
          fmt::format("RoPE: rope_type {} needs {}, which is {}; add it, as the model was trained",
                      type, key, rope.contains(key) ? "null" : "absent"));
    take(rope, key, out);
  }
  void note(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }
  Result<> result() const {
    if (problem_.empty()) return {};
    return std::unexpected(config_problem(problem_));
  }

 private:
  std::string problem_;
};

/// transformers 5 takes the pretraining length from the top level of the file; if absent there,
/// from the RoPE parameters; if absent there too, from the number of positions.
void read_original_length(const Json& json, const Json& rope, RopeNumbers& numbers,
                          ModelConfig& model) {
  constexpr const char* kKey = "original_max_position_embeddings";
  model.rope_scaling_original_length = model.num_positions;
  numbers.take(rope, kKey, model.rope_scaling_original_length);
  numbers.take(json, kKey, model.rope_scaling_original_length);
}

void read_yarn(const Json& json, const Json& rope, RopeNumbers& numbers, ModelConfig& model) {
  model.rope_scaling_high_frequency = 32.0;
  model.rope_scaling_low_frequency = 1.0;
  numbers.take(rope, "beta_slow", model.rope_scaling_low_frequency);
  numbers.take(rope, "beta_fast", model.rope_scaling_high_frequency);
  numbers.take(rope, "mscale", model.rope_scaling_mscale);
  numbers.take(rope, "mscale_all_dim", model.rope_scaling_mscale_all_dim);
  read_original_length(json, rope, numbers, model);
  // Without a factor, it is the ratio of the number of positions to that of the pretraining.
  if (find_value(rope, "factor") == nullptr && model.rope_scaling_original_length > 0 &&
      model.rope_scaling_original_length != model.num_positions)
    model.rope_scaling_factor = static_cast<double>(model.num_positions) /
                                static_cast<double>(model.rope_scaling_original_length);
  else
    numbers.require(rope, "factor", "yarn", model.rope_scaling_factor);
  if (const Json* factor = find_value(rope, "attention_factor"))
    numbers.note(fmt::format("RoPE: attention_factor is {}, which is not implemented for yarn",
                             factor->dump()));
  // null means no rounding, like false.
  if (const auto truncate = rope.find("truncate"); truncate != rope.end() && *truncate != true)
    numbers.note(
        fmt::format("RoPE: truncate is {}, only true is implemented for yarn", truncate->dump()));
}

void read_llama3(const Json& json, const Json& rope, RopeNumbers& numbers, ModelConfig& model) {
  numbers.require(rope, "factor", "llama3", model.rope_scaling_factor);
  numbers.require(rope, "low_freq_factor", "llama3", model.rope_scaling_low_frequency);
  numbers.require(rope, "high_freq_factor", "llama3", model.rope_scaling_high_frequency);
  if (find_value(json, "original_max_position_embeddings") == nullptr)
    numbers.require(rope, "original_max_position_embeddings", "llama3",
                    model.rope_scaling_original_length);
  read_original_length(json, rope, numbers, model);
}

/// Resets the model's RoPE to that of a file without RoPE keys.
void reset(ModelConfig& model, const RopeDefaults& defaults) {
  const ModelConfig plain;
  model.rotary_embedding_base = defaults.base;
  model.rotary_percentage = defaults.share;
  model.rope_scaling_factor = plain.rope_scaling_factor;
  model.rope_scaling_low_frequency = plain.rope_scaling_low_frequency;
  model.rope_scaling_high_frequency = plain.rope_scaling_high_frequency;
  model.rope_scaling_original_length = plain.rope_scaling_original_length;
  model.rope_scaling_mscale = plain.rope_scaling_mscale;
  model.rope_scaling_mscale_all_dim = plain.rope_scaling_mscale_all_dim;
}

/// Reads `rope` and what is beside it in the file.
Result<> read_parameters(const Json& json, const Json& rope, const RopeDefaults& defaults,
                         ModelConfig& model) {
  if (!rope.is_object())
    return std::unexpected(
        config_problem(fmt::format("rope parameters are {}, not an object", rope.dump())));
  if (std::ranges::any_of(rope, [](const Json& value) { return value.is_object(); }))
    return std::unexpected(config_problem(
        fmt::format("rope parameters are {}: those of single kinds of layers are not implemented",
                    rope.dump())));
  reset(model, defaults);
  RopeNumbers numbers;
  for (const char* key : {"rotary_emb_base", "rope_theta"})
    numbers.take(json, key, model.rotary_embedding_base);
  numbers.take(rope, "rope_theta", model.rotary_embedding_base);
  for (const char* key : {"rotary_pct", "partial_rotary_factor"})
    numbers.take(json, key, model.rotary_percentage);
  numbers.take(rope, "partial_rotary_factor", model.rotary_percentage);

  const Json* type = find_value(rope, "rope_type");
  if (type == nullptr) type = find_value(rope, "type");
  const std::string name = type == nullptr     ? "default"
                           : type->is_string() ? type->get<std::string>()
                                               : type->dump();
  if (name != "default" && name != "linear" && name != "llama3" && name != "yarn")
    return std::unexpected(config_problem(fmt::format(
        "rope_type {} is not implemented; default, linear, llama3 and yarn are", name)));
  model.rope_scaling = name == "default" ? "none" : name;
  if (name == "linear") numbers.require(rope, "factor", name, model.rope_scaling_factor);
  if (name == "llama3") read_llama3(json, rope, numbers, model);
  if (name == "yarn") read_yarn(json, rope, numbers, model);
  return numbers.result();
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

bool same_rope(const ModelConfig& one, const ModelConfig& other) {
  return one.rotary_embedding_base == other.rotary_embedding_base &&
         one.rotary_percentage == other.rotary_percentage && rope_values(one) == rope_values(other);
}

/// model.num_positions must be set. transformers 5 reads rope_parameters only if rope_scaling is
/// empty, and 4 does not know them: a file with both must mean the same by each.
Result<> read_rope(const Json& json, ModelConfig& model, const RopeDefaults& defaults) {
  static const Json kNone = Json::object();
  const auto find = [&](const char* key) {
    const Json* found = find_value(json, key);
    return found == nullptr || *found == kNone ? nullptr : found;
  };
  const Json* version4 = find("rope_scaling");
  const Json* version5 = find("rope_parameters");
  const Json& first = version4 != nullptr ? *version4 : version5 != nullptr ? *version5 : kNone;
  SORTIE_TRY(read_parameters(json, first, defaults, model));
  if (version4 == nullptr || version5 == nullptr) return {};
  ModelConfig other = model;
  SORTIE_TRY(read_parameters(json, *version5, defaults, other));
  if (same_rope(model, other)) return {};
  return std::unexpected(config_problem(
      fmt::format("rope_scaling is {} and rope_parameters is {}, which mean different models; keep "
                  "the one that the model was trained with",
                  version4->dump(), version5->dump())));
}

void write_rope_as(const ModelConfig& model, Json& json, const RopeDefaults& defaults) {
  ModelConfig old = model;
  const bool described = json.contains("rope_parameters") || json.contains("rope_theta") ||
                         json.contains("rotary_pct") || json.contains("rope_scaling");
  if (described && read_rope(json, old, defaults) && same_rope(old, model)) return;
  const bool version4 = described && !json.contains("rope_parameters");
  Json rope = rope_values(model);
  const bool partial = defaults.share != 1.0;
  for (const char* key :
       {"rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "rotary_pct",
        "partial_rotary_factor", "original_max_position_embeddings"})
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

template <const RopeDefaults& defaults>
Result<> read_rope_of(const Json& json, ModelConfig& model) {
  return read_rope(json, model, defaults);
}
template <const RopeDefaults& defaults>
Result<> write_rope_of(const ModelConfig& model, Json& json) {
  if (defaults.share == 1.0 && model.rotary_percentage != 1.0)
    return std::unexpected(
        config_problem(fmt::format("model.rotary_percentage = {}: {} of transformers "
                                   "rotates whole heads",
                                   model.rotary_percentage, model.architecture)));
  write_rope_as(model, json, defaults);
  return {};
}

}  // namespace

const HfPart kHfRope{read_rope_of<kFullRope>, write_rope_of<kFullRope>};
const HfPart kHfPartialRope{read_rope_of<kPartialRope>, write_rope_of<kPartialRope>};
const HfPart kHfMixtralRope{read_rope_of<kMixtralRope>, write_rope_of<kMixtralRope>};

}  // namespace sortie::trainer
