#include "trainer/ops/cuda/optimizer.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/optimizer_rounded.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::sum_of_squares(Context& context, const Tensor& values, Tensor& sum) {
  const Tensor parts = context.empty(DType::f64, {square_parts(values.elements())});
  sum_squares(current_stream(context), flat<const float>(values), address<double>(parts),
              address<double>(sum));
}

void CudaBackend::adamw(Context& context, const AdamWStep& step, Tensor& w, const Tensor& grad,
                        Tensor& m, Tensor& v, Tensor& compute) {
  const AdamWNumbers numbers{.lr = address<const float>(step.lr),
                             .beta1 = step.beta1,
                             .beta2 = step.beta2,
                             .rest1 = 1.0f - step.beta1,
                             .rest2 = 1.0f - step.beta2,
                             .eps = step.eps,
                             .weight_decay = step.weight_decay,
                             .gate = address<const float>(step.gate)};
  if (m.dtype() == DType::bf16) {
    const MomentRounding& rounding = step.rounding;
    return adamw_rounded_range(current_stream(context), numbers,
                               {.key = rounding.key,
                                .step = address<const std::int64_t>(rounding.step),
                                .first = rounding.first,
                                .begin = rounding.begin,
                                .columns = rounding.columns,
                                .stride = rounding.stride},
                               {.w = address<float>(w),
                                .grad = address<const float>(grad),
                                .m = address<bf16>(m),
                                .v = address<bf16>(v),
                                .compute = address<bf16>(compute),
                                .count = w.elements()});
  }
  adamw_range(current_stream(context), numbers,
              {.w = address<float>(w),
               .grad = address<const float>(grad),
               .m = address<float>(m),
               .v = address<float>(v),
               .compute = address<bf16>(compute),
               .count = w.elements()});
}

}  // namespace sortie::trainer::ops::cuda
