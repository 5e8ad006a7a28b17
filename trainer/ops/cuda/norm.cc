#include "trainer/ops/cuda/norm.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <class T>
Rows<T> rows_or_none(const Tensor& tensor) {
  return tensor.defined() ? rows_of<T>(tensor) : Rows<T>{};
}

}  // namespace

void CudaBackend::residual_norm_forward(Context& context, NormKind kind, const Tensor& residual,
                                        const Tensor& branch, const Tensor& weight,
                                        const Tensor& bias, float eps, Tensor& residual_out,
                                        Tensor& y, Tensor& stats) {
  with_float_type(y.dtype(), [&]<class T> {
    norm_forward<T>(current_stream(context), {.residual = rows_of<const T>(residual),
                                              .branch = rows_or_none<const T>(branch),
                                              .sum = rows_of<T>(residual_out),
                                              .y = rows_of<T>(y),
                                              .weight = address<const float>(weight),
                                              .bias = address<const float>(bias),
                                              .stats = address<float>(stats),
                                              .eps = eps,
                                              .layer = kind == NormKind::layer});
  });
}

void CudaBackend::residual_norm_backward(Context& context, NormKind kind, const Tensor& dy,
                                         const Tensor& dresidual, const Tensor& x,
                                         const Tensor& weight, const Tensor& stats, Tensor& dx,
                                         Tensor& dweight, Tensor& dbias) {
  with_float_type(dx.dtype(), [&]<class T> {
    const Rows<const T> in = rows_of<const T>(x);
    Tensor partial;
    if (dweight.defined() || dbias.defined())
      partial = context.empty(
          DType::f32, {norm_parts(in.rows, in.cols).blocks, dbias.defined() ? 2 : 1, in.cols});
    norm_backward<T>(current_stream(context), {.dy = rows_of<const T>(dy),
                                               .dresidual = rows_or_none<const T>(dresidual),
                                               .x = in,
                                               .dx = rows_of<T>(dx),
                                               .weight = address<const float>(weight),
                                               .stats = address<const float>(stats),
                                               .partial = address<float>(partial),
                                               .dweight = address<float>(dweight),
                                               .dbias = address<float>(dbias),
                                               .layer = kind == NormKind::layer});
  });
}

}  // namespace sortie::trainer::ops::cuda
