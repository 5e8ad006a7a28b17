// Checks of the experts' ops, and the sorting.
#include "trainer/ops/moe_experts.h"

#include <algorithm>

#include "trainer/ops/moe_impl.h"

namespace sortie::trainer::ops {
namespace {

std::int64_t padded(std::int64_t rows) {
  return (rows + kExpertRowUnit - 1) / kExpertRowUnit * kExpertRowUnit;
}

void check_matrix(const Tensor& x, DType dtype, std::int64_t rows, std::int64_t cols,
                  const char* name) {
  SORTIE_CHECK(x.dtype() == dtype && x.shape() == Shape({rows, cols}),
               "{} is {} {}, expected {} [{}, {}]", name, dtype_name(x.dtype()),
               x.shape().to_string(), dtype_name(dtype), rows, cols);
}

void check_rows(const ExpertRows& rows, const Tensor& sorted, const Tensor& tokens) {
  SORTIE_CHECK(sorted.dtype() != DType::i32, "sorted rows are {}", dtype_name(sorted.dtype()));
  check_matrix(sorted, sorted.dtype(), rows.rows, sorted.size(-1), "sorted");
  check_matrix(tokens, sorted.dtype(), rows.tokens, sorted.size(-1), "tokens");
}

void check_weights(const ExpertRows& rows, const Tensor& weights, const char* name) {
  check_matrix(weights, DType::f32, rows.tokens, rows.top_k, name);
  SORTIE_CHECK(weights.dense(), "{} must be dense", name);
}

void check_products(const ExpertRows& rows, const Tensor& narrow, const Tensor& wide,
                    std::span<const PackedWeight* const> weights) {
  SORTIE_CHECK(weights.size() == rows.counts.size(), "{} weights for {} experts", weights.size(),
               rows.counts.size());
  for (const PackedWeight* weight : weights) {
    check_matrix(narrow, weight->plain().dtype(), rows.rows, weight->plain().size(1), "x");
    check_matrix(wide, weight->plain().dtype(), rows.rows, weight->plain().size(0), "y");
    SORTIE_CHECK(weight->plain().shape() == weights[0]->plain().shape(), "experts differ in shape");
  }
}

}  // namespace

ExpertRows sort_by_expert(ExecutionContext& context, const Tensor& experts,
                          std::int64_t expert_count) {
  SORTIE_CHECK(experts.dtype() == DType::i32 && experts.dense() && experts.shape().dims() == 2 &&
                   expert_count > 0,
               "experts {} {}", dtype_name(experts.dtype()), experts.shape().to_string());
  ExpertRows rows;
  rows.tokens = experts.size(0);
  rows.top_k = experts.size(1);
  const std::int64_t choices = experts.elements();
  const auto* chosen = experts.data<std::int32_t>();
  rows.counts.assign(static_cast<std::size_t>(expert_count), 0);
  for (std::int64_t i = 0; i < choices; ++i) {
    SORTIE_CHECK(chosen[i] >= 0 && chosen[i] < expert_count, "expert {} of {}", chosen[i],
                 expert_count);
    ++rows.counts[static_cast<std::size_t>(chosen[i])];
  }
  rows.begin = {0};
  for (const std::int64_t count : rows.counts)
    rows.begin.push_back(rows.begin.back() + padded(count));
  rows.rows = rows.begin.back();
  rows.capacity = padded(choices + std::min(choices, expert_count) * (kExpertRowUnit - 1));

  rows.row_of = context.empty(DType::i32, experts.shape());
  rows.source = context.empty(DType::i32, {rows.capacity}).slice(0, 0, rows.rows);
  auto* source = rows.source.data<std::int32_t>();
  std::fill_n(source, rows.rows, -1);
  std::vector<std::int64_t> next(rows.begin.begin(), rows.begin.end() - 1);
  for (std::int64_t i = 0; i < choices; ++i) {
    const std::int64_t row = next[static_cast<std::size_t>(chosen[i])]++;
    rows.row_of.data<std::int32_t>()[i] = static_cast<std::int32_t>(row);
    source[row] = static_cast<std::int32_t>(i);
  }
  return rows;
}

void dispatch_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                      Tensor& sorted) {
  check_rows(rows, sorted, x);
  dispatch_forward_cpu(context, rows, x, sorted);
}

void dispatch_backward(ExecutionContext& context, const ExpertRows& rows, const Tensor& dsorted,
                       Tensor& dx) {
  check_rows(rows, dsorted, dx);
  dispatch_backward_cpu(context, rows, dsorted, dx);
}

void combine_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& sorted,
                     const Tensor& weights, Tensor& y) {
  check_rows(rows, sorted, y);
  check_weights(rows, weights, "weights");
  combine_forward_cpu(context, rows, sorted, weights, y);
}

void combine_backward(ExecutionContext& context, const ExpertRows& rows, const Tensor& dy,
                      const Tensor& sorted, const Tensor& weights, Tensor& dsorted,
                      Tensor& dweights) {
  check_rows(rows, sorted, dy);
  check_rows(rows, dsorted, dy);
  check_weights(rows, weights, "weights");
  check_weights(rows, dweights, "dweights");
  combine_backward_cpu(context, rows, dy, sorted, weights, dsorted, dweights);
}

void grouped_linear_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                            std::span<const PackedWeight* const> weights, Tensor& y) {
  check_products(rows, x, y, weights);
  grouped_linear_forward_cpu(context, rows, x, weights, y);
}

void grouped_linear_backward_data(ExecutionContext& context, const ExpertRows& rows,
                                  const Tensor& dy, std::span<const PackedWeight* const> weights,
                                  Tensor& dx) {
  check_products(rows, dx, dy, weights);
  grouped_linear_backward_data_cpu(context, rows, dy, weights, dx);
}

void grouped_linear_backward_weight(ExecutionContext& context, const ExpertRows& rows,
                                    const Tensor& dy, const Tensor& x, std::span<Tensor> dw) {
  SORTIE_CHECK(dw.size() == rows.counts.size(), "{} gradients for {} experts", dw.size(),
               rows.counts.size());
  check_matrix(x, dy.dtype(), rows.rows, x.size(-1), "x");
  check_matrix(dy, x.dtype(), rows.rows, dy.size(-1), "dy");
  for (const Tensor& gradient : dw) {
    if (!gradient.defined()) continue;
    check_matrix(gradient, DType::f32, dy.size(1), x.size(1), "dw");
    SORTIE_CHECK(gradient.dense(), "dw must be dense");
  }
  grouped_linear_backward_weight_cpu(context, rows, dy, x, dw);
}

}  // namespace sortie::trainer::ops
