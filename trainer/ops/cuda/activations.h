// Kernels of SwiGLU and GELU. T: float or bf16.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// The halves of rows [gate | up], each of `cols` columns. If `counted` (on the device) is not
/// nullptr, kernels process only the first *counted rows.
template <class T>
struct GatedRows {
  Rows<T> gate, up;
};
template <class T>
void swiglu_rows(cudaStream_t stream, const GatedRows<const T>& in, const std::int64_t* counted,
                 Rows<T> y);
template <class T>
void swiglu_backward_rows(cudaStream_t stream, Rows<const T> dy, const GatedRows<const T>& in,
                          const std::int64_t* counted, const GatedRows<T>& out);

/// GELU: exact, or its tanh form.
template <class T>
void gelu_rows(cudaStream_t stream, bool tanh_form, Rows<const T> x, Rows<T> y);
template <class T>
void gelu_backward_rows(cudaStream_t stream, bool tanh_form, Rows<const T> dy, Rows<const T> x,
                        Rows<T> dx);

}  // namespace sortie::trainer::ops::cuda
