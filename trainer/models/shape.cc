#include "trainer/models/shape.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "common/config/architectures.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/moe_router.h"

namespace sortie::trainer {

ModelShape resolve_shape(const config::ModelConfig& c) {
  const auto round_up = [](std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit * unit;
  };
  const config::Architecture& architecture = config::architecture_of(c);
  ModelShape s{};
  s.vocab_size = c.vocab_size;
  s.padded_vocab_size = round_up(c.vocab_size, 64);
  s.hidden = c.hidden_size;
  s.layers = c.num_layers;
  s.heads = c.num_attention_heads;
  s.kv_heads = c.attention_num_kv_heads ? c.attention_num_kv_heads : s.heads;
  s.head_dim = c.head_dim ? c.head_dim : s.hidden / s.heads;
  s.value_dim = s.head_dim;
  if (architecture.latent) {
    s.head_dim = c.mla.qk_nope_head_dim + c.mla.qk_rope_head_dim;
    s.value_dim = c.mla.v_head_dim;
  }
  s.ffn = config::inner_width(c);
  s.sequence_length = c.sequence_length;
  // Rounds to the nearest, as the check of the config does: 0.1 * 20 may be a little less than 2.
  s.rotary_dims =
      architecture.rope ? std::lround(static_cast<double>(s.head_dim) * c.rotary_percentage) : 0;
  if (architecture.latent) s.rotary_dims = c.mla.qk_rope_head_dim;
  s.num_positions = c.num_positions ? c.num_positions : c.sequence_length;
  s.tied = c.weight_tying;
  return s;
}

namespace {

constexpr const char* kOrCpu = "or compute on the CPU (trainer.device = \"cpu\")";

Result<> check_head_sizes(const config::ModelConfig& config) {
  const ModelShape shape = resolve_shape(config);
  const std::int64_t widest = std::max(shape.head_dim, shape.value_dim);
  if (widest <= ops::kMaxHeadSizeOnGpu) return {};
  const bool latent = config::architecture_of(config).latent;
  return fail(ErrorCode::unsupported,
              fmt::format("{}: heads of {} dimensions are wider than the {} that GPUs support; use "
                          "narrower heads, {}",
                          !latent ? "model.head_dim"
                          : shape.head_dim == widest
                              ? "model.mla.qk_nope_head_dim, model.mla.qk_rope_head_dim"
                              : "model.mla.v_head_dim",
                          widest, ops::kMaxHeadSizeOnGpu, kOrCpu));
}

}  // namespace

Result<> check_device_limits(const config::ModelConfig& config, const Device& device) {
  if (device.kind != DeviceKind::cuda) return {};
  SORTIE_TRY(check_head_sizes(config));
  if (!config::architecture_of(config).mixture || config.moe.num_experts <= ops::kMaxExpertsOnGpu)
    return {};
  return fail(ErrorCode::unsupported,
              fmt::format("model.moe.num_experts: {} experts are more than the {} that GPUs "
                          "support; use fewer, {}",
                          config.moe.num_experts, ops::kMaxExpertsOnGpu, kOrCpu));
}

std::int64_t expert_ffn(const config::ModelConfig& config, const ModelShape& shape) {
  return config.moe.ffn_hidden_size ? config.moe.ffn_hidden_size : shape.ffn;
}

}  // namespace sortie::trainer
