// The experts of a mixture: sorts tokens by expert, multiplies every expert with its own rows, and
// returns the rows to their tokens as a weighted sum.
#pragma once

#include <span>

#include "trainer/ops/linear.h"

namespace sortie::trainer::ops {

/// Experts that are multiplied begin at multiples of this many rows; the rows in between are zero.
/// This limits the number of different products.
inline constexpr std::int64_t kExpertRowUnit = 16;

/// The row of every (token, choice) among the rows sorted by expert. Within an expert, rows are in
/// token order. The assignment is known only on the device: sorted tensors have `capacity` rows, of
/// which ops access only the first row_count().
struct ExpertRows {
  std::int64_t tokens = 0, top_k = 0, experts = 0;
  std::int64_t capacity = 0;  // the maximum number of rows, with padding, for these sizes
  std::int64_t most = 0;      // the maximum number of choices with a row
  bool limited = false;       // some choices may have no row
  std::int64_t unit = kExpertRowUnit;
  Tensor begin;   // i64 [E + 1], multiples of `unit`; the last is the number of rows
  Tensor row_of;  // i32 [M, k]; -1 for a choice without a row
  Tensor source;  // i32 [capacity]: m * k + j, or -1 for padding

  /// i64 [1]: number of rows in use, of `capacity`.
  Tensor row_count() const { return begin.slice(0, experts, 1); }
};
/// Value of `most`: no limit, each choice has a row.
inline constexpr std::int64_t kEveryChoice = -1;

/// Sorts the choices experts i32 [M, k], all in [0, expert_count). With a `unit` of 1 there is no
/// padding, for rows that are sent to other ranks; products require kExpertRowUnit. With `most`,
/// choices may be -1, those that ops::limit_choices() drops: they have no row, and at most `most`
/// other choices have one.
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
/// without rows is skipped.
void grouped_linear_forward(ExecutionContext& context, const ExpertRows& rows, const Tensor& x,
                            std::span<const PackedWeight* const> weights, Tensor& y);
/// Expert e's rows of dx [capacity, K] = its rows of dy [capacity, N] . W_e
void grouped_linear_backward_data(ExecutionContext& context, const ExpertRows& rows,
                                  const Tensor& dy, std::span<const PackedWeight* const> weights,
                                  Tensor& dx);
/// dw_e [N, K] (f32, dense) += dy_e^T . x_e; unchanged for an expert without rows. An undefined
/// dw_e is not computed.
void grouped_linear_backward_weight(ExecutionContext& context, const ExpertRows& rows,
                                    const Tensor& dy, const Tensor& x, std::span<Tensor> dw);

}  // namespace sortie::trainer::ops
