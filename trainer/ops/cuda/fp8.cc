// Casts to FP8, and products of them by cuBLASLt.
#include "trainer/ops/cuda/fp8.h"

#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// The only form of FP8 products on GPUs of compute capability 8.9 and 9.0: along contiguous memory
/// of both operands.
Product product_of(const Fp8Operand& a, const Fp8Operand& b, const Tensor& y) {
  const std::int64_t k = a.codes.size(1);
  return {.m = a.codes.size(0),
          .n = b.codes.size(0),
          .k = k,
          .input = DType::u8,
          .output = y.dtype(),
          .a_format = a.format,
          .b_format = b.format,
          .b_transposed = true,
          .a_row = k,
          .b_row = k,
          .c_row = y.matrix().stride};
}

Operands operands_of(const Fp8Operand& a, const Fp8Operand& b, const Tensor& y) {
  return {.a = a.codes.raw(),
          .b = b.codes.raw(),
          .c = y.raw(),
          .a_scale = address<const float>(a.inverse_scale),
          .b_scale = address<const float>(b.inverse_scale)};
}

}  // namespace

void CudaBackend::cast_fp8(Context& context, const Tensor& x, const Fp8Amax& amax,
                           Fp8Matrix& matrix) {
  const auto rows = rows_of<const bf16>(x);
  if (rows.rows == 0) return;
  const cudaStream_t stream = current_stream(context);
  const std::int64_t count = fp8_parts(rows.rows);
  const Tensor parts = context.empty(DType::f32, {count});
  Tensor tiles;
  if (amax.current.defined()) tiles = context.empty(DType::f32, {fp8_tiles(rows.rows, rows.cols)});
  const Fp8Largest largest{.history = address<const float>(amax.history),
                           .parts = address<float>(parts),
                           .count = static_cast<int>(count)};
  find_largest(stream, rows, largest);
  cast_to_fp8(stream, rows, largest, matrix.format,
              {.rows = address<std::uint8_t>(matrix.rows),
               .columns = address<std::uint8_t>(matrix.columns),
               .inverse_scale = address<float>(matrix.inverse_scale),
               .tiles = address<float>(tiles)});
  if (tiles.defined()) note_largest(stream, flat<const float>(tiles), address<float>(amax.current));
}

void CudaBackend::roll_fp8_history(Context& context, Tensor& history, Tensor& current) {
  roll_histories(current_stream(context), address<float>(history), flat<float>(current));
}

void CudaBackend::multiply_fp8(Context& context, const Fp8Operand& a, const Fp8Operand& b,
                               const Tensor& bias, Tensor& y) {
  multiply_with_bias(context, product_of(a, b, y), operands_of(a, b, y), bias, y);
}

void CudaBackend::weight_gradient_fp8(Context& context, const Fp8Operand& a, const Fp8Operand& b,
                                      Tensor& dw, WriteMode mode) {
  Product product = product_of(a, b, dw);
  product.accumulate = mode == WriteMode::add;
  products_.run(context, product, operands_of(a, b, dw));
}

}  // namespace sortie::trainer::ops::cuda
