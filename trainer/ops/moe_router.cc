// Checks of the routers, and what is small enough for one thread.
#include "trainer/ops/moe_router.h"

#include <cmath>
#include <numeric>

#include "trainer/ops/moe_impl.h"

namespace sortie::trainer::ops {
namespace {

void check_f32(const Tensor& x, const Shape& shape, const char* name) {
  SORTIE_CHECK(x.dtype() == DType::f32 && x.dense() && x.shape() == shape,
               "{} is {} {}, expected dense f32 {}", name, dtype_name(x.dtype()),
               x.shape().to_string(), shape.to_string());
}

void check_choices(const Tensor& x, const Shape& shape, const char* name) {
  SORTIE_CHECK(x.dtype() == DType::i32 && x.dense() && x.shape() == shape,
               "{} is {} {}, expected dense i32 {}", name, dtype_name(x.dtype()),
               x.shape().to_string(), shape.to_string());
}

void check_spec(const RouterSpec& s) {
  SORTIE_CHECK(s.experts > 0 && s.groups > 0 && s.experts % s.groups == 0 && s.kept_groups > 0 &&
                   s.kept_groups <= s.groups && s.top_k > 0 &&
                   s.top_k <= s.experts / s.groups * s.kept_groups,
               "top {} of {} experts in {} groups, {} kept", s.top_k, s.experts, s.groups,
               s.kept_groups);
}

void check_sequences(const Tensor& scores, const Tensor& counts, std::int64_t top_k) {
  check_f32(scores, {scores.size(0), scores.size(-1)}, "scores");
  check_f32(counts, {counts.size(0), scores.size(1)}, "counts");
  SORTIE_CHECK(counts.size(0) > 0 && scores.size(0) % counts.size(0) == 0 && top_k > 0 &&
                   top_k <= scores.size(1),
               "{} rows in {} sequences, top {} of {}", scores.size(0), counts.size(0), top_k,
               scores.size(1));
}

}  // namespace

void route_forward(ExecutionContext& context, const RouterSpec& spec, const Tensor& logits,
                   const Tensor& bias, const Tensor& replay, Tensor& scores, Tensor& experts,
                   Tensor& weights) {
  check_spec(spec);
  const std::int64_t rows = logits.size(0);
  check_f32(logits, {rows, spec.experts}, "logits");
  check_f32(scores, logits.shape(), "scores");
  if (bias.defined()) check_f32(bias, {spec.experts}, "bias");
  if (replay.defined()) check_choices(replay, {rows, spec.top_k}, "replay");
  check_choices(experts, {rows, spec.top_k}, "experts");
  check_f32(weights, experts.shape(), "weights");
  route_forward_cpu(context, spec, logits, bias, replay, scores, experts, weights);
}

void route_backward(ExecutionContext& context, const RouterSpec& spec, const Tensor& scores,
                    const Tensor& experts, const Tensor& dweights, const Tensor& dscores,
                    Tensor& dlogits) {
  check_spec(spec);
  check_f32(scores, {scores.size(0), spec.experts}, "scores");
  check_choices(experts, {scores.size(0), spec.top_k}, "experts");
  if (dweights.defined()) check_f32(dweights, experts.shape(), "dweights");
  if (dscores.defined()) check_f32(dscores, scores.shape(), "dscores");
  check_f32(dlogits, scores.shape(), "dlogits");
  route_backward_cpu(context, spec, scores, experts, dweights, dscores, dlogits);
}

void count_top_experts(ExecutionContext& context, const Tensor& scores, std::int64_t top_k,
                       Tensor& counts) {
  check_sequences(scores, counts, top_k);
  count_top_experts_cpu(context, scores, top_k, counts);
}

double sequence_balance(ExecutionContext& context, const Tensor& scores, const Tensor& counts,
                        std::int64_t top_k) {
  check_sequences(scores, counts, top_k);
  return sequence_balance_cpu(context, scores, counts, top_k);
}

void sequence_balance_backward(ExecutionContext& context, const Tensor& scores,
                               const Tensor& counts, std::int64_t top_k, float scale,
                               Tensor& dscores) {
  check_sequences(scores, counts, top_k);
  check_f32(dscores, scores.shape(), "dscores");
  sequence_balance_backward_cpu(context, scores, counts, top_k, scale, dscores);
}

std::vector<double> column_sums(const Tensor& matrix) {
  check_f32(matrix, {matrix.size(0), matrix.size(-1)}, "matrix");
  const std::int64_t cols = matrix.size(1);
  std::vector<double> sums(static_cast<std::size_t>(cols));
  const float* values = matrix.data<float>();
  for (std::int64_t row = 0; row < matrix.size(0); ++row)
    for (std::int64_t col = 0; col < cols; ++col)
      sums[static_cast<std::size_t>(col)] += static_cast<double>(values[row * cols + col]);
  return sums;
}

double load_balance(const std::vector<double>& assigned, const std::vector<double>& score_sums,
                    double rows) {
  SORTIE_CHECK(assigned.size() == score_sums.size() && rows > 0, "{} experts, {} sums, {} rows",
               assigned.size(), score_sums.size(), rows);
  return static_cast<double>(assigned.size()) *
         std::inner_product(assigned.begin(), assigned.end(), score_sums.begin(), 0.0) /
         (rows * rows);
}

void load_balance_backward(ExecutionContext&, const std::vector<double>& assigned, double rows,
                           float scale, Tensor& dscores) {
  const auto experts = static_cast<std::int64_t>(assigned.size());
  check_f32(dscores, {dscores.size(0), experts}, "dscores");
  std::vector<float> slope;
  for (const double count : assigned)
    slope.push_back(static_cast<float>(static_cast<double>(scale) * static_cast<double>(experts) *
                                       count / (rows * rows)));
  float* out = dscores.data<float>();
  for (std::int64_t row = 0; row < dscores.size(0); ++row)
    for (std::int64_t e = 0; e < experts; ++e)
      out[row * experts + e] += slope[static_cast<std::size_t>(e)];
}

void update_router_bias(const std::vector<double>& counts, float rate, Tensor& bias) {
  const auto experts = static_cast<std::int64_t>(counts.size());
  check_f32(bias, {experts}, "bias");
  const double mean =
      std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(experts);
  float* values = bias.data<float>();
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] < mean) values[e] += rate;
    if (counts[e] > mean) values[e] -= rate;
  }
}

}  // namespace sortie::trainer::ops
