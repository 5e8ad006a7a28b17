// How a family's models lie in a Hugging Face folder: keys of config.json and names of tensors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::trainer {

/// A key of config.json that is a key of [model].
struct HfKey {
  std::string_view name;
  std::variant<std::int64_t config::ModelConfig::*, double config::ModelConfig::*,
               bool config::ModelConfig::*>
      member;
  double fallback = 0.0;  // where the file has no such key, as transformers does
};

/// A key that must have one value, because nothing else is computed here. Absent: that value.
struct HfFixed {
  std::string_view name;
  std::variant<std::string_view, bool, std::int64_t, double> value;
  std::vector<std::string_view> same = {};  // other names of that value
};

/// How the rows of a weight lie in the folder.
enum class HfForm {
  plain,
  transposed,  // Conv1D: [in, out]
  per_head,    // GPT-NeoX: the heads one after another, each with its q, k and v
};

/// "<hf>.weight" and "<hf>.bias" are (a segment of) "<ours>.weight" and "<ours>.bias", as far as
/// those exist. "{}" stands for the layer, "{e}" for the expert.
struct HfModule {
  std::string_view hf, ours;
  std::string_view segment = {};  // of the rows; empty = all
  HfForm form = HfForm::plain;
  std::string_view hf_bias = {};  // where it is not "<hf>.bias"
};

/// What of config.json is no plain key; both leave alone what is as they would write it.
struct HfPart {
  Result<> (*read)(const nlohmann::json& json, config::ModelConfig& model);
  Result<> (*write)(const config::ModelConfig& model, nlohmann::json& json);
};
extern const HfPart kHfRope;           // rope_parameters, or rope_theta and rope_scaling
extern const HfPart kHfPartialRope;    // the same with the share that is turned (GPT-NeoX)
extern const HfPart kHfMixtralRope;    // rope_theta is 1e6 where a file has none
extern const HfPart kHfGptNeoLayers;   // attention_types and window_size
extern const HfPart kHfMistralWindow;  // sliding_window of every layer, 4096 where a file has none
extern const HfPart kHfMixtralWindow;  // the same, none where a file has none
extern const HfPart kHfLayerTypes;     // use_sliding_window, layer_types, max_window_layers (Qwen)

extern const HfPart kHfMixtral;  // [model.moe] and, for the last, [model.mla], [model.mtp]
extern const HfPart kHfQwen3Moe;
extern const HfPart kHfDeepseekV3;

struct HfFormat {
  std::string_view model_type;    // "gpt2"
  std::string_view architecture;  // "GPT2LMHeadModel"
  std::string_view prefix;        // of all names but the head's; some folders leave it out
  std::vector<HfKey> keys;
  std::vector<HfFixed> fixed;
  std::vector<const HfPart*> parts;
  std::vector<HfModule> modules;           // "head" is left out where it is tied
  std::vector<HfModule> mtp_modules = {};  // of layers beyond the last: multi-token prediction
  std::vector<std::string_view> buffers =
      {};  // ends of names that old folders have and nobody needs
};

}  // namespace sortie::trainer
