// Checks of the experts' ops.
#include "trainer/ops/moe_experts.h"

#include <algorithm>

#include "trainer/ops/copy.h"
#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

std::int64_t padded(std::int64_t rows, std::int64_t unit) {
  return (rows + unit - 1) / unit * unit;
}

void check_matrix(const Tensor& x, DType dtype, std::int64_t rows, std::int64_t cols,
                  const char* name) {
  SORTIE_CHECK(x.dtype() == dtype && x.shape() == Shape({rows, cols}),
               "{} is {} {}, expected {} [{}, {}]", name, dtype_name(x.dtype()),
               x.shape().to_string(), dtype_name(dtype), rows, cols);
}

void check_rows(const ExpertRows& rows, const Tensor& sorted, const Tensor& tokens) {
  SORTIE_CHECK(sorted.dtype() != DType::i32, "sorted rows are {}", dtype_name(sorted.dtype()));
  check_matrix(sorted, sorted.dtype(), rows.capacity, sorted.size(-1), "sorted");
  check_matrix(tokens, sorted.dtype(), rows.tokens, sorted.size(-1), "tokens");
}

void check_weights(const ExpertRows& rows, const Tensor& weights, const char* name) {
  check_matrix(weights, DType::f32, rows.tokens, rows.top_k, name);
  SORTIE_CHECK(weights.dense(), "{} must be dense", name);
}

/// Counts products of the maximum number of chosen rows, without padding.
void count_products(ExecutionContext& context, const ExpertRows& rows, std::int64_t n,
                    std::int64_t k) {
  context.count_flop(2 * rows.most * n * k);
}

void check_products(const ExpertRows& rows, const Tensor& narrow, const Tensor& wide,
                    std::span<const PackedWeight* const> weights) {
  SORTIE_CHECK(weights.size() == static_cast<std::size_t>(rows.experts),
               "{} weights for {} experts", weights.size(), rows.experts);
  SORTIE_CHECK(rows.unit == kExpertRowUnit, "products of rows in units of {}", rows.unit);
  for (const PackedWeight* weight : weights) {
    check_matrix(narrow, weight->plain().dtype(), rows.capacity, weight->plain().size(1), "x");
    check_matrix(wide, weight->plain().dtype(), rows.capacity, weight->plain().size(0), "y");
    SORTIE_CHECK(weight->plain().shape() == weights[0]->plain().shape(), "experts differ in shape");
  }
}

}  // namespace

ExpertRows sort_by_expert(ExecutionContext& context, const Tensor& experts,
                          std::int64_t expert_count, std::int64_t unit, std::int64_t most) {
  SORTIE_CHECK(experts.dtype() == DType::i32 && experts.dense() && experts.shape().dims() == 2 &&
                   expert_count > 0 && unit > 0 && most >= kEveryChoice,
               "experts {} {}", dtype_name(experts.dtype()), experts.shape().to_string());
  ExpertRows rows;
  rows.tokens = experts.size(0);
  rows.top_k = experts.size(1);
  rows.experts = expert_count;
  const std::int64_t choices =
      most == kEveryChoice ? experts.elements() : std::min(most, experts.elements());
  rows.most = choices;
  rows.limited = most != kEveryChoice;
  rows.unit = unit;
  rows.capacity = padded(choices + std::min(choices, expert_count) * (unit - 1), unit);
  rows.begin = context.empty(DType::i64, {expert_count + 1});
  rows.row_of = context.empty(DType::i32, experts.shape());
  rows.source = context.empty(DType::i32, {rows.capacity});
  dispatch<&Backend::sort_by_expert>(context, experts, rows);
  return rows;
}

void dispatch_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                      Tensor& sorted) {
  check_rows(rows, sorted, x);
  dispatch<&Backend::dispatch_forward>(context, rows, x, sorted);
}

void dispatch_backward(ExecutionContext& context, const ExpertRows& rows, const Tensor& dsorted,
                       Tensor& dx) {
  check_rows(rows, dsorted, dx);
  dispatch<&Backend::dispatch_backward>(context, rows, dsorted, dx);
}

void combine_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& sorted,
                     const Tensor& weights, Tensor& y) {
  check_rows(rows, sorted, y);
  check_weights(rows, weights, "weights");
  dispatch<&Backend::combine_forward>(context, rows, sorted, weights, y);
}

void combine_backward(ExecutionContext& context, const ExpertRows& rows, const Tensor& dy,
                      const Tensor& sorted, const Tensor& weights, Tensor& dsorted,
                      Tensor& dweights) {
  check_rows(rows, sorted, dy);
  check_rows(rows, dsorted, dy);
  check_weights(rows, weights, "weights");
  check_weights(rows, dweights, "dweights");
  if (rows.limited) fill(context, 0.0, dweights);
  dispatch<&Backend::combine_backward>(context, rows, dy, sorted, weights, dsorted, dweights);
}

void grouped_linear_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                            std::span<const PackedWeight* const> weights, Tensor& y) {
  check_products(rows, x, y, weights);
  count_products(context, rows, y.size(1), x.size(1));
  dispatch<&Backend::grouped_linear_forward>(context, rows, x, weights, y);
}

void grouped_linear_backward_data(ExecutionContext& context, const ExpertRows& rows,
                                  const Tensor& dy, std::span<const PackedWeight* const> weights,
                                  Tensor& dx) {
  check_products(rows, dx, dy, weights);
  count_products(context, rows, dy.size(1), dx.size(1));
  dispatch<&Backend::grouped_linear_backward_data>(context, rows, dy, weights, dx);
}

void grouped_linear_backward_weight(ExecutionContext& context, const ExpertRows& rows,
                                    const Tensor& dy, const Tensor& x, std::span<Tensor> dw) {
  SORTIE_CHECK(dw.size() == static_cast<std::size_t>(rows.experts), "{} gradients for {} experts",
               dw.size(), rows.experts);
  check_matrix(x, dy.dtype(), rows.capacity, x.size(-1), "x");
  check_matrix(dy, x.dtype(), rows.capacity, dy.size(-1), "dy");
  for (const Tensor& gradient : dw) {
    if (!gradient.defined()) continue;
    check_matrix(gradient, DType::f32, dy.size(1), x.size(1), "dw");
    SORTIE_CHECK(gradient.dense(), "dw must be dense");
  }
  if (std::ranges::any_of(dw, &Tensor::defined))
    count_products(context, rows, dy.size(1), x.size(1));
  dispatch<&Backend::grouped_linear_backward_weight>(context, rows, dy, x, dw);
}

}  // namespace sortie::trainer::ops
