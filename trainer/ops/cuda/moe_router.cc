// Routers and balance losses.
#include "trainer/ops/cuda/moe_router.h"

#include <algorithm>
#include <limits>

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/expert_sort.h"
#include "trainer/ops/cuda/moe_balance.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"

namespace sortie::trainer::ops::cuda {
namespace {

Routing routing_of(const RouterSpec& spec) {
  return {.sigmoid = spec.score == RouterScore::sigmoid,
          .normalize = spec.normalize,
          .experts = static_cast<int>(spec.experts),
          .top_k = static_cast<int>(spec.top_k),
          .groups = static_cast<int>(spec.groups),
          .kept_groups = static_cast<int>(spec.kept_groups),
          .scale = spec.scale};
}

Tensor parts_of(ExecutionContext& context, std::int64_t rows, std::int64_t cols) {
  return context.empty(DType::f64, {(rows + kRowsPerPart - 1) / kRowsPerPart, cols});
}

/// E / (k T S T): the factor of a count in the mean over S sequences of T tokens each.
double balance_factor(const Tensor& scores, const Tensor& counts, std::int64_t top_k) {
  const auto rows = static_cast<double>(scores.size(0));
  const double length = rows / static_cast<double>(counts.size(0));
  return static_cast<double>(scores.size(1)) / (static_cast<double>(top_k) * rows) / length;
}

}  // namespace

void CudaBackend::route_forward(Context& context, const RouterSpec& spec, const Tensor& logits,
                                const Tensor& bias, const Tensor& replay, Tensor& scores,
                                Tensor& experts, Tensor& weights) {
  route_rows(current_stream(context), routing_of(spec),
             {.logits = address<const float>(logits),
              .bias = address<const float>(bias),
              .replay = address<const std::int32_t>(replay),
              .scores = address<float>(scores),
              .experts = address<std::int32_t>(experts),
              .weights = address<float>(weights),
              .rows = logits.size(0)});
}

void CudaBackend::route_backward(Context& context, const RouterSpec& spec, const Tensor& scores,
                                 const Tensor& experts, const Tensor& dweights,
                                 const Tensor& dscores, Tensor& dlogits) {
  route_rows_backward(current_stream(context), routing_of(spec),
                      {.scores = address<const float>(scores),
                       .experts = address<const std::int32_t>(experts),
                       .dweights = address<const float>(dweights),
                       .dscores = address<const float>(dscores),
                       .dlogits = address<float>(dlogits),
                       .rows = scores.size(0)});
}

void CudaBackend::count_choices(Context& context, const Tensor& experts, Tensor& counts) {
  const Choices choices{address<const std::int32_t>(experts), experts.elements(), 1,
                        static_cast<int>(counts.elements())};
  const Tensor chunks = context.empty(DType::i32, {chunk_counts_of(choices)});
  count_experts(current_stream(context), choices, address<std::int32_t>(chunks),
                address<double>(counts));
}

void CudaBackend::count_choices_of_parts(Context& context, const Tensor& experts, Tensor& counts) {
  const Choices choices{address<const std::int32_t>(experts), experts.elements(), counts.size(0),
                        static_cast<int>(counts.size(1))};
  const Tensor chunks = context.empty(DType::i32, {chunk_counts_of(choices)});
  count_experts(current_stream(context), choices, address<std::int32_t>(chunks),
                address<float>(counts));
}

void CudaBackend::limit_choices(Context& context, const Tensor& experts, std::int64_t expert_count,
                                const ChoiceLimit& limit, Tensor& kept, Tensor& dropped) {
  const Choices choices{address<const std::int32_t>(experts), experts.elements(),
                        limit.sequences * limit.parts(), static_cast<int>(expert_count)};
  const Tensor counts = context.empty(DType::i32, {2, chunk_counts_of(choices)});
  const Tensor late = context.empty(DType::i32, {choices.segments * expert_count});
  const ExpertLimit each{
      .capacity = static_cast<std::int32_t>(
          std::min<std::int64_t>(limit.capacity, std::numeric_limits<std::int32_t>::max())),
      .before = limit.before.defined() ? address<const double>(limit.before) : nullptr,
      .parts = limit.parts()};
  limit_experts(current_stream(context), choices, each,
                address<std::int32_t>(counts.slice(0, 0, 1)),
                address<std::int32_t>(counts.slice(0, 1, 1)), address<std::int32_t>(late),
                address<std::int32_t>(kept), address<double>(dropped));
}

void CudaBackend::count_top_experts(Context& context, const Tensor& scores, std::int64_t top_k,
                                    Tensor& counts) {
  const cudaStream_t stream = current_stream(context);
  const Tensor chosen = context.empty(DType::i32, {scores.size(0), top_k});
  top_experts(stream, rows_of<const float>(scores), static_cast<int>(top_k),
              address<std::int32_t>(chosen));
  const Choices choices{address<const std::int32_t>(chosen), chosen.elements(), counts.size(0),
                        static_cast<int>(scores.size(1))};
  const Tensor chunks = context.empty(DType::i32, {chunk_counts_of(choices)});
  count_experts(stream, choices, address<std::int32_t>(chunks), address<float>(counts));
}

void CudaBackend::sequence_balance(Context& context, const Tensor& scores, const Tensor& counts,
                                   std::int64_t top_k, double coefficient, Tensor& loss) {
  const Tensor parts = parts_of(context, scores.size(0), 1);
  add_sequence_balance(current_stream(context), rows_of<const float>(scores),
                       address<const float>(counts), scores.size(0) / counts.size(0),
                       coefficient * balance_factor(scores, counts, top_k), flat<double>(parts),
                       address<double>(loss));
}

void CudaBackend::sequence_balance_backward(Context& context, const Tensor& scores,
                                            const Tensor& counts, std::int64_t top_k, float scale,
                                            Tensor& dscores) {
  const double factor = static_cast<double>(scale) * balance_factor(scores, counts, top_k);
  add_sequence_balance_slope(current_stream(context), rows_of<const float>(scores),
                             address<const float>(counts), scores.size(0) / counts.size(0),
                             static_cast<float>(factor), address<float>(dscores));
}

void CudaBackend::column_sums(Context& context, const Tensor& matrix, Tensor& sums) {
  const Tensor parts = parts_of(context, matrix.size(0), matrix.size(1));
  add_column_sums(current_stream(context), rows_of<const float>(matrix), flat<double>(parts),
                  address<double>(sums));
}

void CudaBackend::load_balance(Context& context, const Tensor& assigned, const Tensor& score_sums,
                               double rows, double coefficient, Tensor& loss) {
  const auto experts = static_cast<double>(assigned.elements());
  add_dot(current_stream(context), flat<const double>(assigned), address<const double>(score_sums),
          coefficient * experts / (rows * rows), address<double>(loss));
}

void CudaBackend::load_balance_backward(Context& context, const Tensor& assigned, double rows,
                                        float scale, Tensor& dscores) {
  const auto experts = static_cast<double>(assigned.elements());
  add_load_balance_slope(current_stream(context), address<const double>(assigned),
                         static_cast<double>(scale) * experts / (rows * rows),
                         rows_of<float>(dscores));
}

void CudaBackend::update_router_bias(Context& context, const Tensor& gate, const Tensor& counts,
                                     float rate, Tensor& bias) {
  move_bias(current_stream(context), address<const float>(gate), flat<const double>(counts), rate,
            address<float>(bias));
}

}  // namespace sortie::trainer::ops::cuda
