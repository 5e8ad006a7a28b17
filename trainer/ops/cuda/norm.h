// Kernels of RMSNorm and LayerNorm with the residual addition.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// branch.data may be nullptr: `sum` is then `residual` and is not written. bias may be nullptr.
template <class T>
struct NormForward {
  Rows<const T> residual, branch;
  Rows<T> sum, y;
  const float *weight = nullptr, *bias = nullptr;
  float* stats = nullptr;  // [rows, 2]
  float eps = 0.0f;
  bool layer = false;
};
template <class T>
void norm_forward(cudaStream_t stream, const NormForward<T>& a);

/// dresidual.data, dweight and dbias may each be nullptr. The requested sums are taken over the
/// rows of every block into `partial` [blocks, 1 or 2 with a dbias, cols], then over blocks.
template <class T>
struct NormBackward {
  Rows<const T> dy, dresidual, x;
  Rows<T> dx;
  const float *weight = nullptr, *stats = nullptr;
  float *partial = nullptr, *dweight = nullptr, *dbias = nullptr;
  bool layer = false;
};
template <class T>
void norm_backward(cudaStream_t stream, const NormBackward<T>& a);

}  // namespace sortie::trainer::ops::cuda
