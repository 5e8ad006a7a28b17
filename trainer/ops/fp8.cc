// Checks of products in FP8, and the casts of weights that are kept.
#include "trainer/ops/fp8.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

void check_operand(const Fp8Operand& operand, const char* name) {
  const Tensor& codes = operand.codes;
  SORTIE_CHECK(codes.defined() && codes.dtype() == DType::u8 && codes.dense() &&
                   codes.shape().dims() == 2 && operand.inverse_scale.defined(),
               "{} is no matrix in FP8", name);
}

/// Checks a product's operands, shapes and formats; counts 2 M N K.
void check_product(ExecutionContext& context, const Fp8Operand& a, const Fp8Operand& b,
                   const Tensor& y) {
  check_operand(a, "a");
  check_operand(b, "b");
  const Tensor::Matrix out = y.matrix();
  const std::int64_t m = a.codes.size(0), n = b.codes.size(0), k = a.codes.size(1);
  SORTIE_CHECK(b.codes.size(1) == k && out.rows == m && out.cols == n, "a {}, b {}, y {}",
               a.codes.shape().to_string(), b.codes.shape().to_string(), y.shape().to_string());
  SORTIE_CHECK(fp8_can_multiply(m, n, k), "a product [{}, {}] x [{}, {}] in FP8", m, k, k, n);
  SORTIE_CHECK(a.format == Fp8Format::e4m3 || b.format == Fp8Format::e4m3,
               "a product of two matrices in E5M2");
  context.count_flop(2 * m * n * k);
}

}  // namespace

std::size_t Fp8Copies::bytes() const {
  std::size_t sum = 0;
  for (const Tensor& tensor : {matrix.rows, matrix.columns, matrix.inverse_scale})
    if (tensor.defined())
      sum += static_cast<std::size_t>(tensor.elements()) * dtype_bytes(tensor.dtype());
  return sum;
}

namespace {

/// Allocates the requested copies that do not exist yet.
void make_room(ExecutionContext& context, std::int64_t rows, std::int64_t cols, Fp8Forms forms,
               Fp8Matrix& matrix) {
  if (forms.rows && !matrix.rows.defined()) matrix.rows = context.empty(DType::u8, {rows, cols});
  if (forms.columns && !matrix.columns.defined())
    matrix.columns = context.empty(DType::u8, {cols, rows});
  if (!matrix.inverse_scale.defined()) matrix.inverse_scale = context.empty(DType::f32, {1});
}

void cast(ExecutionContext& context, const Tensor& x, const Fp8Amax& amax, Fp8Matrix& matrix) {
  const Tensor::Matrix in = x.matrix();
  SORTIE_CHECK(x.dtype() == DType::bf16 && in.rows % kFp8Unit == 0 && in.cols % kFp8Unit == 0,
               "{} {} in FP8", dtype_name(x.dtype()), x.shape().to_string());
  SORTIE_CHECK(!amax.history.defined() ||
                   (amax.history.dtype() == DType::f32 && amax.history.elements() == kFp8History),
               "a history of {}", amax.history.shape().to_string());
  dispatch<&Backend::cast_fp8>(context, x, amax, matrix);
}

/// The kept casts of the weight, brought up to date.
const Fp8Matrix& kept_casts(ExecutionContext& context, const PackedWeight& w, const Fp8Amax& amax) {
  const Tensor& plain = w.plain();
  if (w.copies() == nullptr) w.copies() = std::make_unique<Fp8Copies>();
  auto& copies = static_cast<Fp8Copies&>(*w.copies());
  if (!copies.fresh) {
    make_room(context, plain.size(0), plain.size(1), {.rows = true, .columns = true},
              copies.matrix);
    cast(context, plain, amax, copies.matrix);
    copies.fresh = true;
  }
  return copies.matrix;
}

}  // namespace

Fp8Matrix to_fp8(ExecutionContext& context, const Tensor& x, Fp8Format format, Fp8Forms forms,
                 const Fp8Amax& amax) {
  const Tensor::Matrix in = x.matrix();
  Fp8Matrix matrix{.format = format, .rows = {}, .columns = {}, .inverse_scale = {}};
  make_room(context, in.rows, in.cols, forms, matrix);
  cast(context, x, amax, matrix);
  return matrix;
}

Fp8Matrix weight_to_fp8(ExecutionContext& context, const PackedWeight& w, Fp8Forms forms,
                        const Fp8Amax& amax) {
  if (!context.keeps_packed_weights())
    return to_fp8(context, w.plain(), Fp8Format::e4m3, forms, amax);
  return kept_casts(context, w, amax);
}

void refresh_fp8_weight(ExecutionContext& context, const PackedWeight& w, const Fp8Amax& amax) {
  if (context.keeps_packed_weights()) (void)kept_casts(context, w, amax);
}

void roll_fp8_history(ExecutionContext& context, Tensor& history, Tensor& current) {
  SORTIE_CHECK(history.dtype() == DType::f32 && current.dtype() == DType::f32 && history.dense() &&
                   current.dense() && history.elements() == current.elements() * kFp8History,
               "histories {} of {}", history.shape().to_string(), current.shape().to_string());
  dispatch<&Backend::roll_fp8_history>(context, history, current);
}

void multiply_fp8(ExecutionContext& context, const Fp8Operand& a, const Fp8Operand& b,
                  const Tensor& bias, Tensor& y) {
  check_product(context, a, b, y);
  SORTIE_CHECK(y.dtype() == DType::bf16, "y {}", dtype_name(y.dtype()));
  SORTIE_CHECK(!bias.defined() || (bias.dtype() == DType::f32 && bias.dense() &&
                                   bias.elements() == b.codes.size(0)),
               "bias {} for {} columns", bias.shape().to_string(), b.codes.size(0));
  dispatch<&Backend::multiply_fp8>(context, a, b, bias, y);
}

void weight_gradient_fp8(ExecutionContext& context, const Fp8Operand& a, const Fp8Operand& b,
                         Tensor& dw, WriteMode mode) {
  check_product(context, a, b, dw);
  SORTIE_CHECK(dw.dtype() == DType::f32 && dw.dense(), "dw {}", dtype_name(dw.dtype()));
  dispatch<&Backend::weight_gradient_fp8>(context, a, b, dw, mode);
}

}  // namespace sortie::trainer::ops
