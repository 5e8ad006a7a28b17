// Sums, factors and conversions of elements.
#include "trainer/ops/cuda/elementwise.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::add(Context& context, const Tensor& a, const Tensor& b, Tensor& y) {
  with_float_type(y.dtype(), [&]<class T> {
    add_rows(current_stream(context), rows_of<const T>(a), rows_of<const T>(b), rows_of<T>(y));
  });
}

void CudaBackend::scale(Context& context, const Tensor& x, float factor, Tensor& y) {
  with_float_type(y.dtype(), [&]<class T> {
    scale_values(current_stream(context), flat<const T>(x), factor, flat<T>(y));
  });
}

void CudaBackend::convert(Context& context, const Tensor& from, Tensor& to) {
  const cudaStream_t stream = current_stream(context);
  if (from.dtype() == to.dtype())
    return check(cudaMemcpyAsync(to.raw(), from.raw(),
                                 static_cast<std::size_t>(to.elements()) * dtype_bytes(to.dtype()),
                                 cudaMemcpyDeviceToDevice, stream),
                 "a copy");
  if (to.dtype() == DType::bf16)
    convert_values(stream, flat<const float>(from), flat<bf16>(to));
  else
    convert_values(stream, flat<const bf16>(from), flat<float>(to));
}

void CudaBackend::accumulate(Context& context, const Tensor& from, Tensor& sums) {
  accumulate_values(current_stream(context), flat<const double>(from), flat<double>(sums));
}

}  // namespace sortie::trainer::ops::cuda
