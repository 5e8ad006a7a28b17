// Kernels on elements: functions that a .cu file defines and host code calls. Each adds its kernel
// to the stream and returns at once. T: float or bf16.
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
/// y = x * factor; y may be x.
template <class T>
void scale_values(cudaStream_t stream, Flat<const T> x, float factor, Flat<T> y);
/// to = from, rounded. From and To: float and bf16, or bf16 and float.
template <class From, class To>
void convert_values(cudaStream_t stream, Flat<const From> from, Flat<To> to);
/// sums += from.
void accumulate_values(cudaStream_t stream, Flat<const double> from, Flat<double> sums);

}  // namespace sortie::trainer::ops::cuda
