#include "trainer/ops/cuda/dropout.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::dropout(Context& context, const Dropout& dropout, std::int64_t samples,
                          const Tensor& x, Tensor& y) {
  with_float_type(y.dtype(), [&]<class T> {
    const std::int64_t count = x.elements() / samples;
    drop_elements<T>(current_stream(context), dropout_view(dropout),
                     {address<const T>(x), samples, count, count},
                     {address<T>(y), samples, count, count});
  });
}

}  // namespace sortie::trainer::ops::cuda
