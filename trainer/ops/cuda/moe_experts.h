// Kernels that copy rows to experts and combine them again. Each launcher adds its kernels to the
// stream and returns at once.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/expert_sort.h"

namespace sortie::trainer::ops::cuda {

/// sorted = x by token, padding zero.
template <class T>
void dispatch_rows(cudaStream_t stream, const SortedRows& rows, Rows<const T> x, Rows<T> sorted);
/// y = sum over a token's choices of its rows, times weights [tokens, k] unless these are nullptr.
template <class T>
void combine_rows(cudaStream_t stream, const SortedRows& rows, Rows<const T> sorted,
                  const float* weights, Rows<T> y);
/// dsorted = weight * dy, padding zero; dweights = dot(dy, sorted).
template <class T>
void combine_rows_backward(cudaStream_t stream, const SortedRows& rows, Rows<const T> dy,
                           Rows<const T> sorted, const float* weights, Rows<T> dsorted,
                           float* dweights);

}  // namespace sortie::trainer::ops::cuda
