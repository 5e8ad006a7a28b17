// Checks of activations, embedding and conversions.
#include "trainer/ops/elementwise.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

/// x has `like`'s dtype, its number of rows, and `cols` columns.
void check_rows(const Tensor& x, const Tensor& like, std::int64_t cols, const char* name) {
  SORTIE_CHECK(x.dtype() == like.dtype() && x.dtype() != DType::i32 && x.size(-1) == cols &&
                   x.elements() / cols == like.elements() / like.size(-1),
               "{} is {} {}, does not match {} {}", name, dtype_name(x.dtype()),
               x.shape().to_string(), dtype_name(like.dtype()), like.shape().to_string());
}

void check_tokens(const Tensor& tokens, const Tensor& rows) {
  SORTIE_CHECK(tokens.dtype() == DType::i32 && tokens.dense() &&
                   rows.elements() == tokens.elements() * rows.size(-1),
               "tokens {} {} for {}", dtype_name(tokens.dtype()), tokens.shape().to_string(),
               rows.shape().to_string());
}

void check_row_count(const Tensor& rows) {
  SORTIE_CHECK(!rows.defined() || (rows.dtype() == DType::i64 && rows.elements() == 1),
               "a number of rows is {} {}", dtype_name(rows.dtype()), rows.shape().to_string());
}

}  // namespace

void swiglu_forward(ExecutionContext& context, const Tensor& gate_up, const Tensor& rows,
                    Tensor& y) {
  check_row_count(rows);
  SORTIE_CHECK(gate_up.size(-1) == 2 * y.size(-1) && y.size(-1) > 0, "gate_up {}, y {}",
               gate_up.shape().to_string(), y.shape().to_string());
  check_rows(y, gate_up, y.size(-1), "y");
  dispatch<&Backend::swiglu_forward>(context, gate_up, rows, y);
}

void swiglu_backward(ExecutionContext& context, const Tensor& dy, const Tensor& gate_up,
                     const Tensor& rows, Tensor& dgate_up) {
  check_row_count(rows);
  SORTIE_CHECK(gate_up.size(-1) == 2 * dy.size(-1) && dy.size(-1) > 0, "gate_up {}, dy {}",
               gate_up.shape().to_string(), dy.shape().to_string());
  check_rows(dy, gate_up, dy.size(-1), "dy");
  check_rows(dgate_up, gate_up, gate_up.size(-1), "dgate_up");
  dispatch<&Backend::swiglu_backward>(context, dy, gate_up, rows, dgate_up);
}

void gelu_forward(ExecutionContext& context, Gelu kind, const Tensor& x, Tensor& y) {
  check_rows(y, x, x.size(-1), "y");
  dispatch<&Backend::gelu_forward>(context, kind, x, y);
}

void gelu_backward(ExecutionContext& context, Gelu kind, const Tensor& dy, const Tensor& x,
                   Tensor& dx) {
  check_rows(dy, x, x.size(-1), "dy");
  check_rows(dx, x, x.size(-1), "dx");
  dispatch<&Backend::gelu_backward>(context, kind, dy, x, dx);
}

void embedding_forward(ExecutionContext& context, const Tensor& tokens, const Tensor& table,
                       Tensor& y, const TablePart& part) {
  check_tokens(tokens, y);
  SORTIE_CHECK(
      table.shape().dims() == 2 && table.dtype() == y.dtype() && table.size(1) == y.size(-1),
      "table {} {}, y {} {}", dtype_name(table.dtype()), table.shape().to_string(),
      dtype_name(y.dtype()), y.shape().to_string());
  dispatch<&Backend::embedding_forward>(context, tokens, table, part, y);
}

void embedding_backward(ExecutionContext& context, const Tensor& tokens, const Tensor& dy,
                        Tensor& dtable, const TablePart& part) {
  check_tokens(tokens, dy);
  SORTIE_CHECK(
      dtable.dtype() == DType::f32 && dtable.shape().dims() == 2 && dtable.size(1) == dy.size(-1),
      "dtable {} {}, dy {}", dtype_name(dtable.dtype()), dtable.shape().to_string(),
      dy.shape().to_string());
  dispatch<&Backend::embedding_backward>(context, tokens, dy, part, dtable);
}

void add(ExecutionContext& context, const Tensor& a, const Tensor& b, Tensor& y) {
  SORTIE_CHECK(a.shape() == b.shape() && a.shape() == y.shape(), "{} + {} into {}",
               a.shape().to_string(), b.shape().to_string(), y.shape().to_string());
  check_rows(b, a, a.size(-1), "b");
  check_rows(y, a, a.size(-1), "y");
  dispatch<&Backend::add>(context, a, b, y);
}

void convert(ExecutionContext& context, const Tensor& from, Tensor& to) {
  SORTIE_CHECK(from.dtype() != DType::i32 && to.dtype() != DType::i32 && from.dense() &&
                   to.dense() && from.elements() == to.elements(),
               "{} {} to {} {}", dtype_name(from.dtype()), from.shape().to_string(),
               dtype_name(to.dtype()), to.shape().to_string());
  dispatch<&Backend::convert>(context, from, to);
}

}  // namespace sortie::trainer::ops
