// Matrices in FP8 and their products, on GPUs of compute capability 8.9 and higher.
//
// A matrix has one scale: element = value of its code * inverse_scale. The scale is a power of two,
// so scaling causes no rounding. A value is rounded to the nearest code, ties to even; values
// beyond the largest code are clamped to it. NaN and infinities become NaN and do not affect the
// scale. Source: Micikevicius et al. 2022 (formats; E4M3 for the forward pass, E5M2 for gradients).
#pragma once

#include <cstdint>

#include "trainer/ops/fp8_format.h"
#include "trainer/ops/linear.h"

namespace sortie::trainer::ops {

/// True if the product [m, k] x [k, n] is supported.
constexpr bool fp8_can_multiply(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m % kFp8Unit == 0 && n % kFp8Unit == 0 && k % kFp8Unit == 0;
}

/// Which copies of a matrix are requested. GPUs multiply along contiguous memory, so a product
/// along columns needs the columns as rows.
struct Fp8Forms {
  bool rows = false, columns = false;
};

/// One copy of a matrix, as an operand of a product.
struct Fp8Operand {
  Fp8Format format = Fp8Format::e4m3;
  Tensor codes;          // u8 [rows, k], dense
  Tensor inverse_scale;  // f32 [1]
};

/// A matrix [R, C] in FP8.
struct Fp8Matrix {
  Fp8Format format = Fp8Format::e4m3;
  Tensor rows;     // u8 [R, C], dense; undefined if not requested
  Tensor columns;  // u8 [C, R], dense, the transpose; undefined if not requested
  Tensor inverse_scale;

  Fp8Operand by_rows() const { return {format, rows, inverse_scale}; }
  Fp8Operand by_columns() const { return {format, columns, inverse_scale}; }
};

/// Delayed scaling of one tensor, on the device: the history that determines its scale, and where
/// its largest magnitude is recorded.
struct Fp8Amax {
  Tensor history;  // f32 [kFp8History], newest first; 0: none. Undefined: current scaling
  Tensor current;  // f32 [1] = max(itself, the matrix's largest magnitude); undefined: not recorded
};

/// Casts x bf16 [R, C], whose rows may be strided. The scale brings the largest magnitude closest
/// below the largest code. That magnitude is x's own ("current scaling") or, if the history has
/// any, the history's ("delayed scaling": x is read once, and larger values are clamped). R and C
/// are multiples of kFp8Unit.
Fp8Matrix to_fp8(ExecutionContext& context, const Tensor& x, Fp8Format format, Fp8Forms forms,
                 const Fp8Amax& amax = {});

/// A weight in E4M3. If the context keeps packed weights, both copies are made at the first use
/// after each change and kept; otherwise the requested ones are made for the caller.
Fp8Matrix weight_to_fp8(ExecutionContext& context, const PackedWeight& w, Fp8Forms forms,
                        const Fp8Amax& amax = {});

/// If the context keeps packed weights, brings the kept casts of w up to date; otherwise a no-op.
/// Must be called before work that is captured: the graph would otherwise include the casts that
/// were stale at the capture.
void refresh_fp8_weight(ExecutionContext& context, const PackedWeight& w, const Fp8Amax& amax = {});

/// Ends a step: every row of history f32 [N, kFp8History] gets its value of current f32 [N] in
/// front and loses its oldest value. Sets current to 0.
void roll_fp8_history(ExecutionContext& context, Tensor& history, Tensor& current);

/// y [M, N] (bf16) = a [M, K] . b [N, K]^T + bias [N] (f32; may be undefined), summed in f32. At
/// most one of a and b is in E5M2.
void multiply_fp8(ExecutionContext& context, const Fp8Operand& a, const Fp8Operand& b,
                  const Tensor& bias, Tensor& y);
/// dw [M, N] (f32, dense) += a . b^T, or = with WriteMode::replace.
void weight_gradient_fp8(ExecutionContext& context, const Fp8Operand& a, const Fp8Operand& b,
                         Tensor& dw, WriteMode mode = WriteMode::add);

/// The copies that a backend keeps of a weight for products in FP8.
class Fp8Copies final : public PackedCopies {
 public:
  std::size_t bytes() const override;
  void mark_stale() { fresh = false; }

  Fp8Matrix matrix;
  bool fresh = false;
};

}  // namespace sortie::trainer::ops
