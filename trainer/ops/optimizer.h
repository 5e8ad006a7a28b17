// Fused optimizer updates over flat ranges of parameters.
#pragma once

#include <cstdint>
#include <limits>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// sum f64 [1] = sum of squares of dense f32 values, in a fixed order that does not depend on the
/// thread count. NaN or Inf in `values` gives a non-finite result.
void sum_of_squares(ExecutionContext& context, const Tensor& values, Tensor& sum);

/// Stochastic rounding of moments that are kept in bf16: up or down at random, with probabilities
/// that make the mean exact. A step changes a moment by 1 - beta of its size, but neighbouring bf16
/// values are up to 2^-7 of it apart: with beta2 = 0.999 and rounding to nearest, a moment would
/// never change again. An element's random bits are a function of (key, its number in the whole
/// parameter), however the parameter is split: the lower 16 of 32 for m, the upper 16 for v.
struct MomentRounding {
  std::uint64_t key = 0;  // of seed, parameter and step
  /// If defined, i64 [1] on the device: `key` is then of seed and parameter only, and random_bits()
  /// of `key` and this value replaces it.
  Tensor step{};
  /// The range starts after `begin` elements of a block of a matrix, whose row r begins with
  /// element number first + r * stride.
  std::int64_t first = 0, begin = 0;
  std::int64_t columns = 0, stride = 0;  // columns of the block, and of the matrix

  std::int64_t number(std::int64_t i) const {
    return first + (begin + i) / columns * stride + (begin + i) % columns;
  }
  /// Number of elements from i on with consecutive numbers.
  std::int64_t run(std::int64_t i) const {
    return columns == stride ? std::numeric_limits<std::int64_t>::max()
                             : columns - (begin + i) % columns;
  }
};

/// AdamW with decoupled decay (Loshchilov & Hutter 2019), one pass over memory:
///   g = grad * grad_scale ; m = b1 m + (1-b1) g ; v = b2 v + (1-b2) g^2
///   w -= lr * ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * w )
/// and, if `compute` is defined, compute = bf16(w). All are dense and have the same number of
/// elements. All are f32 except `compute`, and m and v if both are bf16: w is then computed from m
/// and v before they are rounded. No-op if the gate (update_gate.h) is closed; grad_scale and the
/// bias corrections are read from it. lr f32 [1] is on the device, like the gate.
struct AdamWStep {
  Tensor lr;
  float beta1, beta2, eps, weight_decay;
  Tensor gate;
  MomentRounding rounding{};  // of moments in bf16
};
void adamw(ExecutionContext& context, const AdamWStep& step, Tensor& w, const Tensor& grad,
           Tensor& m, Tensor& v, Tensor& compute);

}  // namespace sortie::trainer::ops
