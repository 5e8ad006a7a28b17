// Choices sorted by expert, and rows to experts and back.
#include "trainer/ops/cuda/moe_experts.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

SortedRows sorted_rows(const ExpertRows& rows) {
  return {.begin = address<std::int64_t>(rows.begin),
          .row_of = address<std::int32_t>(rows.row_of),
          .source = address<std::int32_t>(rows.source),
          .tokens = rows.tokens,
          .capacity = rows.capacity,
          .unit = rows.unit,
          .top_k = static_cast<int>(rows.top_k),
          .experts = static_cast<int>(rows.experts)};
}

}  // namespace

void CudaBackend::sort_by_expert(Context& context, const Tensor& experts, ExpertRows& rows) {
  const Choices choices{address<const std::int32_t>(experts), experts.elements(), 1,
                        static_cast<int>(rows.experts), rows.limited};
  const Tensor counts = context.empty(DType::i32, {2, chunk_counts_of(choices)});
  sort_choices(current_stream(context), choices, sorted_rows(rows),
               address<std::int32_t>(counts.slice(0, 0, 1)),
               address<std::int32_t>(counts.slice(0, 1, 1)));
}

void CudaBackend::dispatch_forward(Context& context, const ExpertRows& rows, const Tensor& x,
                                   Tensor& sorted) {
  with_float_type(x.dtype(), [&]<class T> {
    dispatch_rows(current_stream(context), sorted_rows(rows), rows_of<const T>(x),
                  rows_of<T>(sorted));
  });
}

void CudaBackend::dispatch_backward(Context& context, const ExpertRows& rows, const Tensor& dsorted,
                                    Tensor& dx) {
  with_float_type(dx.dtype(), [&]<class T> {
    combine_rows(current_stream(context), sorted_rows(rows), rows_of<const T>(dsorted), nullptr,
                 rows_of<T>(dx));
  });
}

void CudaBackend::combine_forward(Context& context, const ExpertRows& rows, const Tensor& sorted,
                                  const Tensor& weights, Tensor& y) {
  with_float_type(y.dtype(), [&]<class T> {
    combine_rows(current_stream(context), sorted_rows(rows), rows_of<const T>(sorted),
                 address<const float>(weights), rows_of<T>(y));
  });
}

void CudaBackend::combine_backward(Context& context, const ExpertRows& rows, const Tensor& dy,
                                   const Tensor& sorted, const Tensor& weights, Tensor& dsorted,
                                   Tensor& dweights) {
  with_float_type(dy.dtype(), [&]<class T> {
    combine_rows_backward(current_stream(context), sorted_rows(rows), rows_of<const T>(dy),
                          rows_of<const T>(sorted), address<const float>(weights),
                          rows_of<T>(dsorted), address<float>(dweights));
  });
}

}  // namespace sortie::trainer::ops::cuda
