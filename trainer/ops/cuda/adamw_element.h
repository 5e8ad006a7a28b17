// One element of AdamW's step, and the step of a range, for .cu files.
#pragma once

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/optimizer.h"
#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {

/// Updates m, v and w by one step whose gate is open. Division and square root are the exact ones,
/// because the time is bound by memory.
__device__ __forceinline__ void adamw_element(const AdamWNumbers& a, float grad, float& w, float& m,
                                              float& v) {
  const float grad_scale = a.gate[1], lr = *a.lr, step_size = lr / a.gate[2];
  const float root_correction2 = a.gate[3];
  const float g = grad * grad_scale;
  // fmaf() wherever the compiler could choose which product it rounds, so that tails and ranges at
  // unaligned addresses have the same bits as all others.
  m = fmaf(a.beta1, m, a.rest1 * g);
  v = fmaf(a.beta2, v, a.rest2 * (g * g));
  const float deviation = fmaf(sqrtf(v), root_correction2, a.eps);
  w -= fmaf(step_size, m / deviation, lr * a.weight_decay * w);
}

/// Calls each.at() for all elements of each.range, four at a time if all of its addresses allow
/// that.
template <class Each>
void for_each_of_range(cudaStream_t stream, const Each& each) {
  const auto& range = each.range;
  const auto row = [&](auto* data) {
    return Rows<std::remove_pointer_t<decltype(data)>>{data, 1, range.count, range.count};
  };
  if (has_packs<4>(row(range.w)) && has_packs<4>(row(range.grad)) && has_packs<4>(row(range.m)) &&
      has_packs<4>(row(range.v)) && has_packs<4>(row(range.compute)))
    for_each_pack<4>(stream, {1, range.count}, each);
  else
    for_each_pack<1>(stream, {1, range.count}, each);
}

}  // namespace sortie::trainer::ops::cuda
