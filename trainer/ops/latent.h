// Pieces of multi-head latent attention (DeepSeek-AI 2024), and YaRN's RoPE (Peng et al. 2023).
#pragma once

#include <vector>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// k [M, H, N + R]: for each head the first N of kv [M, H, N + V], then rope [M, R], which all
/// heads share. kv and rope may be strided.
void latent_keys_forward(ExecutionContext& context, const Tensor& kv, const Tensor& rope,
                         Tensor& k);
/// Overwrites the first N of each head of dkv (the others are unchanged); drope is the sum over
/// heads.
void latent_keys_backward(ExecutionContext& context, const Tensor& dk, Tensor& dkv, Tensor& drope);

/// y [M, A + B] = [a | b]; all may be strided.
void concat_columns(ExecutionContext& context, const Tensor& a, const Tensor& b, Tensor& y);

struct Yarn {
  double factor = 1.0;                       // by which the context is extended
  double original_positions = 0;             // context length before the extension
  double beta_fast = 32.0, beta_slow = 1.0;  // turns over the original context
};
/// RoPE frequencies: those of `base` for fast pairs, those divided by the factor for slow pairs,
/// with a ramp in between.
std::vector<double> yarn_frequencies(std::int64_t rotary_dims, double base, const Yarn& yarn);
/// YaRN's attention temperature: 0.1 mscale ln(factor) + 1, or 1 if factor <= 1.
double yarn_mscale(double factor, double mscale);

}  // namespace sortie::trainer::ops
