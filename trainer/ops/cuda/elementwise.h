// Kernels on elements: what .cu files define and host code starts. Each goes to the stream and
// returns at once. T: float or bf16.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// x = value. T: float, bf16, double, int32, int64, uint8.
template <class T>
void fill_values(cudaStream_t stream, T value, Flat<T> x);
/// y = a + b over rows; y may be a or b.
template <class T>
void add_rows(cudaStream_t stream, Rows<const T> a, Rows<const T> b, Rows<T> y);

}  // namespace sortie::trainer::ops::cuda
