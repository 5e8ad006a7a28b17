// What the keys of [model] mean for each architecture. The config's rules and the models test these
// capabilities instead of architecture names. The architectures themselves are in trainer/models.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/schema.h"

namespace sortie::config {

struct Architecture {
  std::string_view name;           // value of [model] architecture
  bool rope = false;               // false: learned position embeddings
  bool partial_rope = false;       // RoPE may rotate only a part of each head
  bool grouped = false;            // fewer key and value heads than query heads are allowed
  bool own_head_dim = false;       // heads * head_dim may differ from the hidden size
  bool windows = false;            // has local layers: attention_layers and attention_window
  std::int64_t own_window = 0;     // default window; if set, every other layer is local by default
  bool mixture = false;            // has mixtures of experts, see [model.moe]
  bool own_expert_keys = false;    // reads moe.ffn_hidden_size, layer_step and normalize_topk
  bool latent = false;             // has latent attention, see [model.mla], and [model.mtp]
  bool gated_mlp = false;          // default inner width is 8/3 hidden_size, else 4 hidden_size
  bool parallel_residual = false;  // attention and MLP may read the same input
};
std::span<const Architecture> architectures();
/// The entry for [model] architecture. The config must be valid.
const Architecture& architecture_of(const ModelConfig& model);
std::vector<std::string_view> architecture_names();

/// Attention window of a layer in tokens; 0 if the layer attends to all earlier tokens.
std::int64_t window_of_layer(const ModelConfig& model, std::int64_t layer);

/// Inner width of a layer's MLP: ffn_hidden_size, or the architecture's default.
std::int64_t inner_width(const ModelConfig& model);

/// Whether a layer is a mixture of experts.
bool is_mixture(const ModelConfig& model, std::int64_t layer);

/// A named model shape.
struct Preset {
  std::string_view name;
  ModelConfig model;
};
std::span<const Preset> presets();
/// Returns nullptr if there is no such preset.
const Preset* find_preset(std::string_view name);

}  // namespace sortie::config
