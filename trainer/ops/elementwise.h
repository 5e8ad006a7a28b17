// Activations, embedding and small helpers.
#pragma once

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// y [M, F] = silu(gate) * up with gate_up [M, 2 F] = [gate | up]  (Shazeer 2020).
/// `rows` i64 [1]: number of leading rows to compute; undefined: all.
void swiglu_forward(ExecutionContext& context, const Tensor& gate_up, const Tensor& rows,
                    Tensor& y);
void swiglu_backward(ExecutionContext& context, const Tensor& dy, const Tensor& gate_up,
                     const Tensor& rows, Tensor& dgate_up);

/// GELU (Hendrycks & Gimpel 2016).
///   exact: x * 0.5 * (1 + erf(x / sqrt 2))
///   tanh:  x * 0.5 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
enum class Gelu { exact, tanh };
void gelu_forward(ExecutionContext& context, Gelu kind, const Tensor& x, Tensor& y);
void gelu_backward(ExecutionContext& context, Gelu kind, const Tensor& dy, const Tensor& x,
                   Tensor& dx);

/// For a table that is rows [first, first + V) of one with `all` rows.
struct TablePart {
  std::int64_t first = 0;
  std::int64_t all = 0;  // 0: the table is whole
};
/// y [M, C] = rows of table [V, C] for tokens i32 [M]; zero for tokens of other parts. The data
/// loader has checked the range of the tokens.
void embedding_forward(ExecutionContext& context, const Tensor& tokens, const Tensor& table,
                       Tensor& y, const TablePart& part = {});
/// dtable [V, C] (f32) += rows of dy for their tokens, added in token order (the same bits for any
/// thread count).
void embedding_backward(ExecutionContext& context, const Tensor& tokens, const Tensor& dy,
                        Tensor& dtable, const TablePart& part = {});

/// y = a + b; y may be a or b. Same dtype and shape.
void add(ExecutionContext& context, const Tensor& a, const Tensor& b, Tensor& y);
/// Converts between f32 and bf16 (dense).
void convert(ExecutionContext& context, const Tensor& from, Tensor& to);

}  // namespace sortie::trainer::ops
