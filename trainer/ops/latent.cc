// Checks of latent attention's ops, and YaRN.
#include "trainer/ops/latent.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trainer/ops/attention.h"
#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

void check_keys(const Tensor& k, const Tensor& kv, const Tensor& rope) {
  SORTIE_CHECK(k.shape().dims() == 3 && kv.shape().dims() == 3 && rope.shape().dims() == 2 &&
                   k.dtype() != DType::i32 && kv.dtype() == k.dtype() &&
                   rope.dtype() == k.dtype() && kv.size(0) == k.size(0) &&
                   kv.size(1) == k.size(1) && rope.size(0) == k.size(0) &&
                   rope.size(1) < k.size(2) && k.size(2) - rope.size(1) <= kv.size(2),
               "keys {} of {} and {}", k.shape().to_string(), kv.shape().to_string(),
               rope.shape().to_string());
}

}  // namespace

void latent_keys_forward(ExecutionContext& context, const Tensor& kv, const Tensor& rope,
                         Tensor& k) {
  check_keys(k, kv, rope);
  dispatch<&Backend::latent_keys_forward>(context, kv, rope, k);
}

void latent_keys_backward(ExecutionContext& context, const Tensor& dk, Tensor& dkv, Tensor& drope) {
  check_keys(dk, dkv, drope);
  dispatch<&Backend::latent_keys_backward>(context, dk, dkv, drope);
}

void concat_columns(ExecutionContext& context, const Tensor& a, const Tensor& b, Tensor& y) {
  SORTIE_CHECK(a.shape().dims() == 2 && b.shape().dims() == 2 && a.dtype() == b.dtype() &&
                   y.dtype() == a.dtype() && b.size(0) == a.size(0) &&
                   y.shape() == Shape({a.size(0), a.size(1) + b.size(1)}),
               "[{} | {}] into {}", a.shape().to_string(), b.shape().to_string(),
               y.shape().to_string());
  dispatch<&Backend::concat_columns>(context, a, b, y);
}

std::vector<double> yarn_frequencies(std::int64_t rotary_dims, double base, const Yarn& yarn) {
  // The (fractional) pair that makes `turns` full turns over the original context.
  const auto pair_of = [&](double turns) {
    return static_cast<double>(rotary_dims) *
           std::log(yarn.original_positions / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(base));
  };
  const double last = static_cast<double>(rotary_dims - 1);
  const double low = std::max(std::floor(pair_of(yarn.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of(yarn.beta_slow)), last);
  if (low == high) high += 0.001;  // a ramp of no width has no slope
  std::vector<double> frequencies = rope_frequencies(rotary_dims, base);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / yarn.factor * slow + frequencies[i] * (1.0 - slow);
  }
  return frequencies;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace sortie::trainer::ops
