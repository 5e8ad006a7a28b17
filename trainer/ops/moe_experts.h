// The experts of a mixture: tokens sorted by expert, products of every expert with its own rows,
// and the weighted sum that brings the rows back to their tokens.
#pragma once

#include <span>

#include "trainer/ops/linear.h"

namespace sortie::trainer::ops {

/// Where rows are multiplied, experts begin at multiples of this many; the rows between are zero.
/// It keeps the number of different products small.
inline constexpr std::int64_t kExpertRowUnit = 16;

/// Where every (token, choice) has its row among the rows sorted by expert. Within an expert, rows
/// are in token order. Which are whose is known on the device alone: sorted tensors have `capacity`
/// rows, of which ops touch those that there are.
struct ExpertRows {
  std::int64_t tokens = 0, top_k = 0, experts = 0;
  std::int64_t capacity = 0;  // the most rows, with padding, for these sizes
  std::int64_t most = 0;      // the most choices that have a row
  bool limited = false;       // there may be choices without one
  std::int64_t unit = kExpertRowUnit;
  Tensor begin;   // i64 [E + 1], multiples of `unit`; the last one: all rows
  Tensor row_of;  // i32 [M, k]; -1 for a choice without a row
  Tensor source;  // i32 [capacity]: m * k + j, or -1 for padding

  /// i64 [1]: how many of the `capacity` rows there are.
  Tensor row_count() const { return begin.slice(0, experts, 1); }
};
/// Any number of choices: each has a row.
inline constexpr std::int64_t kEveryChoice = -1;

/// experts i32 [M, k], all in [0, expert_count). With a `unit` of 1 there is no padding, for rows
/// that are sent away: products take kExpertRowUnit alone. With `most` some may be -1, the choices
/// that ops::limit_choices() drops: they have no row, and at most so many others have one.
ExpertRows sort_by_expert(ExecutionContext& context, const Tensor& experts,
                          std::int64_t expert_count, std::int64_t unit = kExpertRowUnit,
                          std::int64_t most = kEveryChoice);

/// sorted [capacity, C] = x [M, C] by token, padding zero.
void dispatch_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                      Tensor& sorted);
/// dx [M, C] = sum of a token's rows of dsorted, k or fewer, in the order of its choices.
void dispatch_backward(ExecutionContext& context, const ExpertRows& rows, const Tensor& dsorted,
                       Tensor& dx);

/// y [M, C] = sum over a token's choices j of weights [M, k]_j (f32) * its row of sorted [capacity,
/// C]; a choice without a row adds nothing.
void combine_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& sorted,
                     const Tensor& weights, Tensor& y);
/// dsorted = weight * dy (padding zero), dweights = dot(dy, row), 0 for a choice without a row.
void combine_backward(ExecutionContext& context, const ExpertRows& rows, const Tensor& dy,
                      const Tensor& sorted, const Tensor& weights, Tensor& dsorted,
                      Tensor& dweights);

/// Expert e's rows of y [capacity, N] = its rows of x [capacity, K] . W_e^T for every e. An expert
/// without rows takes no part.
void grouped_linear_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                            std::span<const PackedWeight* const> weights, Tensor& y);
/// Expert e's rows of dx [capacity, K] = its rows of dy [capacity, N] . W_e
void grouped_linear_backward_data(ExecutionContext& context, const ExpertRows& rows,
                                  const Tensor& dy, std::span<const PackedWeight* const> weights,
                                  Tensor& dx);
/// dw_e [N, K] (f32, dense) += dy_e^T . x_e; that of an expert without rows is left as it is. An
/// undefined one is not wanted.
void grouped_linear_backward_weight(ExecutionContext& context, const ExpertRows& rows,
                                    const Tensor& dy, const Tensor& x, std::span<Tensor> dw);

}  // namespace sortie::trainer::ops
