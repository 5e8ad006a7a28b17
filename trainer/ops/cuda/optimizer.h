// Kernels of flat updates.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// sum = sum of squares in f64; `parts` [square_parts(values.size)] is scratch memory.
void sum_squares(cudaStream_t stream, Flat<const float> values, double* parts, double* sum);

/// AdamW's parameters as the elements need them; the others are in the gate (update_gate.h).
struct AdamWNumbers {
  const float* lr = nullptr;
  float beta1, beta2, rest1, rest2, eps, weight_decay;  // rest = 1 - beta
  const float* gate = nullptr;
};
/// All have `count` elements; `compute` may be nullptr.
struct AdamWRange {
  float* w = nullptr;
  const float* grad = nullptr;
  float *m = nullptr, *v = nullptr;
  bf16* compute = nullptr;
  std::int64_t count = 0;
};
void adamw_range(cudaStream_t stream, const AdamWNumbers& numbers, const AdamWRange& range);

}  // namespace sortie::trainer::ops::cuda
