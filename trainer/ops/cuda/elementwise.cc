// Activations and other elementwise ops.
#include "trainer/ops/cuda/elementwise.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::swiglu_forward(Context&, const Tensor&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "swiglu_forward is not there yet");
}

void CudaBackend::swiglu_backward(Context&, const Tensor&, const Tensor&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "swiglu_backward is not there yet");
}

void CudaBackend::gelu_forward(Context&, Gelu, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "gelu_forward is not there yet");
}

void CudaBackend::gelu_backward(Context&, Gelu, const Tensor&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "gelu_backward is not there yet");
}

void CudaBackend::scale(Context&, const Tensor&, float, Tensor&) {
  SORTIE_CHECK(false, "scale is not there yet");
}

void CudaBackend::convert(Context&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "convert is not there yet");
}

void CudaBackend::concat_columns(Context&, const Tensor&, const Tensor&, Tensor&) {
  SORTIE_CHECK(false, "concat_columns is not there yet");
}

void CudaBackend::add(Context& context, const Tensor& a, const Tensor& b, Tensor& y) {
  with_float_type(y.dtype(), [&]<class T> {
    add_rows(current_stream(context), rows_of<const T>(a), rows_of<const T>(b), rows_of<T>(y));
  });
}

}  // namespace sortie::trainer::ops::cuda
