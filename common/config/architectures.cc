#include "common/config/architectures.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::config {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "gpt2"},
    {.name = "gpt-neo", .windows = true, .own_window = 256},
    {.name = "gpt-neo-x",
     .rope = true,
     .partial_rope = true,
     .own_head_dim = true,
     .parallel_residual = true},
    {.name = "llama",
     .rope = true,
     .partial_rope = true,
     .grouped = true,
     .own_head_dim = true,
     .gated_mlp = true},
    {.name = "mistral",
     .rope = true,
     .grouped = true,
     .own_head_dim = true,
     .windows = true,
     .gated_mlp = true},
    {.name = "qwen2", .rope = true, .grouped = true, .windows = true, .gated_mlp = true},
    {.name = "qwen3",
     .rope = true,
     .grouped = true,
     .own_head_dim = true,
     .windows = true,
     .gated_mlp = true},
    {.name = "mixtral",
     .rope = true,
     .grouped = true,
     .own_head_dim = true,
     .windows = true,
     .mixture = true,
     .gated_mlp = true},
    {.name = "qwen3-moe",
     .rope = true,
     .grouped = true,
     .own_head_dim = true,
     .mixture = true,
     .own_expert_keys = true,
     .gated_mlp = true},
    {.name = "deepseek-v3", .rope = true, .mixture = true, .latent = true, .gated_mlp = true},
};

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

const Architecture& architecture_of(const ModelConfig& model) {
  const auto* found = std::ranges::find(kArchitectures, model.architecture, &Architecture::name);
  SORTIE_CHECK(found != std::end(kArchitectures), "architecture {}", model.architecture);
  return *found;
}

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  for (const Architecture& architecture : kArchitectures) names.push_back(architecture.name);
  return names;
}

std::int64_t window_of_layer(const ModelConfig& model, std::int64_t layer) {
  const std::int64_t own = architecture_of(model).own_window;
  const std::int64_t window = model.attention_window == 0 ? own : model.attention_window;
  if (model.attention_layers.empty()) return own > 0 && layer % 2 == 0 ? 0 : window;
  const auto index = static_cast<std::size_t>(layer) % model.attention_layers.size();
  return model.attention_layers[index] == "local" ? window : 0;
}

std::int64_t inner_width(const ModelConfig& model) {
  if (model.ffn_hidden_size != 0) return model.ffn_hidden_size;
  constexpr std::int64_t kUnit = 64;
  if (!architecture_of(model).gated_mlp) return 4 * model.hidden_size;
  return (model.hidden_size * 8 / 3 + kUnit - 1) / kUnit * kUnit;
}

bool is_mixture(const ModelConfig& model, std::int64_t layer) {
  return architecture_of(model).mixture && layer >= model.moe.first_dense_layers &&
         (layer + 1) % model.moe.layer_step == 0;
}

}  // namespace sortie::config
