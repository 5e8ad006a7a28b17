// The format of a family's Hugging Face folders: keys of config.json and names of tensors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::trainer {

/// A key of config.json that corresponds to a key of [model].
struct HfKey {
  std::string_view name;
  std::variant<std::int64_t config::ModelConfig::*, double config::ModelConfig::*,
               bool config::ModelConfig::*>
      member;
  double fallback = 0.0;  // the value if the file has no such key, as in transformers
};

/// A key that must have this value, because nothing else is implemented. An absent key means this
/// value.
struct HfFixed {
  std::string_view name;
  std::variant<std::string_view, bool, std::int64_t, double> value;
  std::vector<std::string_view> same = {};  // other names of that value
};

/// How the folder stores the rows of a weight.
enum class HfForm {
  plain,
  transposed,  // Conv1D: [in, out]
  per_head,    // GPT-NeoX: the heads one after another, each with its q, k and v
};

/// Maps "<hf>.weight" and "<hf>.bias" to "<ours>.weight" and "<ours>.bias", or to one segment of
/// these, if they exist. "{}" stands for the layer, "{e}" for the expert.
struct HfModule {
  std::string_view hf, ours;
  std::string_view segment = {};  // of the rows; empty = all
  HfForm form = HfForm::plain;
  std::string_view hf_bias = {};  // the name of the bias if it is not "<hf>.bias"
};

/// A part of config.json that plain keys cannot express. `write` leaves keys unchanged that already
/// express the model's values.
struct HfPart {
  Result<> (*read)(const nlohmann::json& json, config::ModelConfig& model);
  Result<> (*write)(const config::ModelConfig& model, nlohmann::json& json);
};
extern const HfPart kHfRope;           // rope_parameters, or rope_theta and rope_scaling
extern const HfPart kHfPartialRope;    // the same plus the rotated share of a head (GPT-NeoX)
extern const HfPart kHfMixtralRope;    // like kHfRope; an absent rope_theta means 1e6
extern const HfPart kHfGptNeoLayers;   // attention_types and window_size
extern const HfPart kHfMistralWindow;  // sliding_window of every layer; absent means 4096
extern const HfPart kHfMixtralWindow;  // the same; absent means none
extern const HfPart kHfLayerTypes;     // use_sliding_window, layer_types, max_window_layers (Qwen)

extern const HfPart kHfMixtral;  // [model.moe]; kHfDeepseekV3 also [model.mla] and [model.mtp]
extern const HfPart kHfQwen3Moe;
extern const HfPart kHfDeepseekV3;

struct HfFormat {
  std::string_view model_type;    // "gpt2"
  std::string_view architecture;  // "GPT2LMHeadModel"
  std::string_view prefix;        // of all names except the head's; some folders omit it
  std::vector<HfKey> keys;
  std::vector<HfFixed> fixed;
  std::vector<const HfPart*> parts;
  std::vector<HfModule> modules;               // "head" is omitted if it is tied
  std::vector<HfModule> mtp_modules = {};      // of layers beyond the last: multi-token prediction
  std::vector<std::string_view> buffers = {};  // suffixes of names in old folders that are ignored
};

}  // namespace sortie::trainer
