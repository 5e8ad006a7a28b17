// Products of experts with their rows.
#include "trainer/ops/cuda/grouped_linear.h"

#include <algorithm>
#include <vector>

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

ExpertRanges ranges_of(const ExpertRows& rows) {
  return {.begin = address<const std::int64_t>(rows.begin),
          .capacity = rows.capacity,
          .usual = rows.tokens * rows.top_k / rows.experts};
}

void multiply(ExecutionContext& context, const ExpertRows& rows, const Tensor& in,
              std::span<const PackedWeight* const> weights, bool transposed, Tensor& out) {
  with_float_type(in.dtype(), [&]<class T> {
    std::vector<const T*> addresses;
    for (const PackedWeight* weight : weights)
      addresses.push_back(address<const T>(weight->plain()));
    multiply_experts<T>(current_stream(context), ranges_of(rows), rows_of<const T>(in), addresses,
                        transposed, rows_of<T>(out));
  });
}

}  // namespace

void CudaBackend::grouped_linear_forward(Context& context, const ExpertRows& rows, const Tensor& x,
                                         std::span<const PackedWeight* const> weights, Tensor& y) {
  multiply(context, rows, x, weights, false, y);
}

void CudaBackend::grouped_linear_backward_data(Context& context, const ExpertRows& rows,
                                               const Tensor& dy,
                                               std::span<const PackedWeight* const> weights,
                                               Tensor& dx) {
  multiply(context, rows, dy, weights, true, dx);
}

void CudaBackend::grouped_linear_backward_weight(Context& context, const ExpertRows& rows,
                                                 const Tensor& dy, const Tensor& x,
                                                 std::span<Tensor> dw) {
  std::vector<float*> gradients;
  for (const Tensor& gradient : dw) gradients.push_back(address<float>(gradient));
  if (std::ranges::all_of(gradients, [](const float* at) { return at == nullptr; })) return;
  with_float_type(x.dtype(), [&]<class T> {
    add_expert_gradients(current_stream(context), ranges_of(rows), rows_of<const T>(dy),
                         rows_of<const T>(x), gradients);
  });
}

}  // namespace sortie::trainer::ops::cuda
