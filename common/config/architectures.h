// What the keys of [model] mean for each architecture: capabilities that the config's rules and the
// models ask for, in place of names. The architectures themselves are the files of trainer/models.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/schema.h"

namespace sortie::config {

struct Architecture {
  std::string_view name;         // of [model] architecture
  bool rope = false;             // else a learned table of positions
  bool partial_rope = false;     // RoPE may turn a share of each head
  bool grouped = false;          // fewer key and value heads than query heads
  bool own_head_dim = false;     // heads need not divide the hidden size
  bool windows = false;          // local layers: attention_layers and attention_window
  std::int64_t own_window = 0;   // of local layers where the config has none; every other layer is
                                 // one then
  bool mixture = false;          // experts, see [model.moe]
  bool own_expert_keys = false;  // moe.ffn_hidden_size, layer_step and normalize_topk are read
  bool latent = false;           // latent attention, see [model.mla], and [model.mtp]
  bool gated_mlp = false;        // inner width 8/3 hidden by default, else 4 hidden
  bool parallel_residual = false;  // attention and MLP may read the same sum
};
std::span<const Architecture> architectures();
/// The row of [model] architecture; the config was checked.
const Architecture& architecture_of(const ModelConfig& model);
std::vector<std::string_view> architecture_names();

/// Whether a layer attends to a window only, and the window's size in tokens.
std::int64_t window_of_layer(const ModelConfig& model, std::int64_t layer);

/// Inner width of a layer's MLP: ffn_hidden_size, or what the architecture makes of the hidden
/// size.
std::int64_t inner_width(const ModelConfig& model);

/// Whether a layer is a mixture of experts.
bool is_mixture(const ModelConfig& model, std::int64_t layer);

/// Named shapes. Empty: no such preset.
struct Preset {
  std::string_view name;
  ModelConfig model;
};
std::span<const Preset> presets();
const Preset* find_preset(std::string_view name);

}  // namespace sortie::config
