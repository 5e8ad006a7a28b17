// Fused updates over flat ranges.
#pragma once

#include <cstdint>
#include <limits>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// sum f64 [1] = sum of squares of dense f32 values, in a fixed order that does not depend on the
/// thread count. NaN or Inf in `values` gives a non-finite result.
void sum_of_squares(ExecutionContext& context, const Tensor& values, Tensor& sum);

/// How moments that are kept in bf16 are rounded: up or down at random, with the chances that make
/// the mean exact. What comes to a moment in a step is 1 - beta of its size, and neighbours in bf16
/// are up to 2^-7 of it apart: with beta2 = 0.999 a moment that is rounded to the nearest would
/// never move again. An element's random bits are a function of (key, its number in the whole
/// parameter), however that is cut: the lower 16 of 32 for m, the upper ones for v.
struct MomentRounding {
  std::uint64_t key = 0;  // of seed, parameter and step
  /// Where it is defined, i64 [1] on the device: `key` is of seed and parameter, and random_bits()
  /// of it and this number takes its place.
  Tensor step{};
  /// The range is what follows `begin` elements of a block of a matrix: its row r begins with
  /// element number first + r * stride.
  std::int64_t first = 0, begin = 0;
  std::int64_t columns = 0, stride = 0;  // of the block, and of the matrix

  std::int64_t number(std::int64_t i) const {
    return first + (begin + i) / columns * stride + (begin + i) % columns;
  }
  /// Elements from i on whose numbers follow each other.
  std::int64_t run(std::int64_t i) const {
    return columns == stride ? std::numeric_limits<std::int64_t>::max()
                             : columns - (begin + i) % columns;
  }
};

/// AdamW with decoupled decay (Loshchilov & Hutter 2019), one pass over memory:
///   g = grad * grad_scale ; m = b1 m + (1-b1) g ; v = b2 v + (1-b2) g^2
///   w -= lr * ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * w )
/// and, where `compute` is defined, compute = bf16(w). All dense and of as many elements; f32 but
/// for `compute`, and m and v where both are bf16: w then has the bits that follow from m and v
/// before they are rounded.
/// Nothing is changed where the gate (update_gate.h) is closed; grad_scale and the
/// corrections are its own.
/// lr f32 [1] is read where the gate is.
struct AdamWStep {
  Tensor lr;
  float beta1, beta2, eps, weight_decay;
  Tensor gate;
  MomentRounding rounding{};  // of moments in bf16
};
void adamw(ExecutionContext& context, const AdamWStep& step, Tensor& w, const Tensor& grad,
           Tensor& m, Tensor& v, Tensor& compute);

}  // namespace sortie::trainer::ops
