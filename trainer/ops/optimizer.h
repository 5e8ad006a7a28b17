// Fused updates over flat f32 ranges.
#pragma once

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// sum f64 [1] = sum of squares of dense f32 values, in a fixed order that does not depend on the
/// thread count. NaN or Inf in `values` gives a non-finite result.
void sum_of_squares(ExecutionContext& context, const Tensor& values, Tensor& sum);

/// AdamW with decoupled decay (Loshchilov & Hutter 2019), one pass over memory:
///   g = grad * grad_scale ; m = b1 m + (1-b1) g ; v = b2 v + (1-b2) g^2
///   w -= lr * ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * w )
/// and, where `compute` is defined, compute = bf16(w). All dense and of as many elements; f32 but
/// for `compute`. Nothing is changed where the gate (update_gate.h) is closed; grad_scale and the
/// corrections are its own.
struct AdamWStep {
  float lr, beta1, beta2, eps, weight_decay;
  Tensor gate;
};
void adamw(ExecutionContext& context, const AdamWStep& step, Tensor& w, const Tensor& grad,
           Tensor& m, Tensor& v, Tensor& compute);

}  // namespace sortie::trainer::ops
