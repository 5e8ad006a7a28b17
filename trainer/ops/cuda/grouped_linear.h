// Products of experts with their rows. The host knows only the maximum number of rows. Each
// launcher adds its kernels to the stream and returns at once. T: float or bf16; sums in f32.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// Expert e has rows [begin[e], begin[e + 1]) of matrices with `capacity` rows.
struct ExpertRanges {
  const std::int64_t* begin = nullptr;
  std::int64_t capacity = 0;
  std::int64_t usual = 0;  // rows per expert if all have equally many: decides the size of tiles
};

/// out = in . W_e^T with dense W_e [out.cols, in.cols], or in . W_e with W_e [in.cols, out.cols].
template <class T>
void multiply_experts(cudaStream_t stream, const ExpertRanges& rows, Rows<const T> in,
                      std::span<const T* const> weights, bool transposed, Rows<T> out);

/// dw_e += dy_e^T . x_e, dense [dy.cols, x.cols]; nullptr is skipped.
template <class T>
void add_expert_gradients(cudaStream_t stream, const ExpertRanges& rows, Rows<const T> dy,
                          Rows<const T> x, std::span<float* const> dw);

}  // namespace sortie::trainer::ops::cuda
