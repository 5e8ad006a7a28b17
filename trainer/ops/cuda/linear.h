// Kernels that complement the products of linear layers. Each launcher adds its kernels to the
// stream and returns at once.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// sums [cols] += column sums of x, in an order that depends on x's shape alone. `parts` is scratch
/// memory for column_sum_parts(x.rows) * x.cols numbers. T: float or bf16.
template <class T>
void add_column_sums(cudaStream_t stream, Rows<const T> x, float* parts, float* sums);

/// sums [cols] += the rows of parts [count, cols], in an order that depends on `count` alone.
void add_parts(cudaStream_t stream, const float* parts, std::int64_t count, std::int64_t cols,
               float* sums);

/// to [from.size] = from, rounded. T: float or bf16.
template <class T>
void round_bias(cudaStream_t stream, Flat<const float> from, T* to);

/// y += bias [y.cols] in every row, for products that cannot add it. T: float or bf16.
template <class T>
void add_bias(cudaStream_t stream, const float* bias, Rows<T> y);

}  // namespace sortie::trainer::ops::cuda
