// Fused updates over flat f32 ranges.
#pragma once

#include <span>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// Sum of squares in f64, in a fixed order that does not depend on the thread count. NaN or Inf in
/// `values` gives a non-finite result.
double sum_of_squares(ExecutionContext& context, std::span<const float> values);

/// AdamW with decoupled decay (Loshchilov & Hutter 2019), one pass over memory:
///   g = grad * grad_scale ; m = b1 m + (1-b1) g ; v = b2 v + (1-b2) g^2
///   w -= lr * ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * w )
/// and, where `compute` is not empty, compute = bf16(w).
struct AdamWStep {
  float lr, beta1, beta2, eps, weight_decay;
  float grad_scale;                // clipping
  float correction1, correction2;  // 1 - b1^t, 1 - b2^t
};
void adamw(ExecutionContext& context, const AdamWStep& step, std::span<float> w,
           std::span<const float> grad, std::span<float> m, std::span<float> v,
           std::span<bf16> compute);

}  // namespace sortie::trainer::ops
