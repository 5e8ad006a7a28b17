// The kernel of dropout.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// y = dropout(x) of dense samples, one per row; y may be x. T: float or bf16.
template <class T>
void drop_elements(cudaStream_t stream, const DropoutView& dropout, Rows<const T> x, Rows<T> y);

}  // namespace sortie::trainer::ops::cuda
