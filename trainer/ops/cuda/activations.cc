#include "trainer/ops/cuda/activations.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <class T>
GatedRows<T> gated(const Tensor& tensor) {
  const Rows<T> rows = rows_of<T>(tensor);
  const std::int64_t half = rows.cols / 2;
  return {{rows.data, rows.rows, half, rows.stride}, {rows.data + half, rows.rows, half, rows.stride}};
}

}  // namespace

void CudaBackend::swiglu_forward(Context& context, const Tensor& gate_up, const Tensor& rows,
                                 Tensor& y) {
  with_float_type(y.dtype(), [&]<class T> {
    swiglu_rows(current_stream(context), gated<const T>(gate_up), address<const std::int64_t>(rows),
                rows_of<T>(y));
  });
}

void CudaBackend::swiglu_backward(Context& context, const Tensor& dy, const Tensor& gate_up,
                                  const Tensor& rows, Tensor& dgate_up) {
  with_float_type(dy.dtype(), [&]<class T> {
    swiglu_backward_rows(current_stream(context), rows_of<const T>(dy), gated<const T>(gate_up),
                         address<const std::int64_t>(rows), gated<T>(dgate_up));
  });
}

void CudaBackend::gelu_forward(Context& context, Gelu kind, const Tensor& x, Tensor& y) {
  with_float_type(y.dtype(), [&]<class T> {
    gelu_rows(current_stream(context), kind == Gelu::tanh, rows_of<const T>(x), rows_of<T>(y));
  });
}

void CudaBackend::gelu_backward(Context& context, Gelu kind, const Tensor& dy, const Tensor& x,
                                Tensor& dx) {
  with_float_type(dx.dtype(), [&]<class T> {
    gelu_backward_rows(current_stream(context), kind == Gelu::tanh, rows_of<const T>(dy),
                       rows_of<const T>(x), rows_of<T>(dx));
  });
}

}  // namespace sortie::trainer::ops::cuda
