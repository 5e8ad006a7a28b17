// One element of AdamW's step, for .cu files.
#pragma once

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/optimizer.h"

namespace sortie::trainer::ops::cuda {

/// m, v and w become those after the step, whose gate is open. The division and the root are the
/// exact ones: memory is what takes the time.
__device__ __forceinline__ void adamw_element(const AdamWNumbers& a, float grad, float& w, float& m,
                                              float& v) {
  const float grad_scale = a.gate[1], lr = *a.lr, step_size = lr / a.gate[2];
  const float root_correction2 = a.gate[3];
  const float g = grad * grad_scale;
  // fmaf() where the compiler could choose which product it rounds: tails and ranges at odd
  // addresses have the bits of all others.
  m = fmaf(a.beta1, m, a.rest1 * g);
  v = fmaf(a.beta2, v, a.rest2 * (g * g));
  const float deviation = fmaf(sqrtf(v), root_correction2, a.eps);
  w -= fmaf(step_size, m / deviation, lr * a.weight_decay * w);
}

}  // namespace sortie::trainer::ops::cuda
