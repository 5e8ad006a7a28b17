// Matrices in FP8 and their products: on GPUs from compute capability 8.9 on.
//
// A matrix is cast as a whole: element = value of its code * inverse_scale, a power of two, so that
// scaling rounds nothing. A value is rounded to the nearest code, of two that are as near to the
// even one; what is beyond the largest becomes the largest. NaN and infinities become NaN, and do
// not count for the scale. Source: Micikevicius et al. 2022 (formats; E4M3 for what goes forward,
// E5M2 for gradients).
#pragma once

#include <cstdint>

#include "trainer/ops/fp8_format.h"
#include "trainer/ops/linear.h"

namespace sortie::trainer::ops {

/// Whether there is a product [m, k] x [k, n].
constexpr bool fp8_can_multiply(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m % kFp8Unit == 0 && n % kFp8Unit == 0 && k % kFp8Unit == 0;
}

/// Which copies of a matrix are wanted. GPUs multiply along what lies together in memory, so a
/// product along columns needs them as rows.
struct Fp8Forms {
  bool rows = false, columns = false;
};

/// One copy of a matrix, as products take it.
struct Fp8Operand {
  Fp8Format format = Fp8Format::e4m3;
  Tensor codes;          // u8 [rows, k], dense
  Tensor inverse_scale;  // f32 [1]
};

/// A matrix [R, C] in FP8.
struct Fp8Matrix {
  Fp8Format format = Fp8Format::e4m3;
  Tensor rows;     // u8 [R, C], dense; undefined where it is not wanted
  Tensor columns;  // u8 [C, R], dense: the transpose; the same
  Tensor inverse_scale;

  Fp8Operand by_rows() const { return {format, rows, inverse_scale}; }
  Fp8Operand by_columns() const { return {format, columns, inverse_scale}; }
};

/// Delayed scaling of one tensor: what its scale is computed from, and where its largest value is
/// noted, on the device.
struct Fp8Amax {
  Tensor history;  // f32 [kFp8History], the newest first; 0: none. Undefined: current scaling
  Tensor current;  // f32 [1]: becomes the larger of it and the matrix' largest; undefined: no note
};

/// x bf16 [R, C] with strided rows, by the scale that brings a value closest below the largest
/// code: x's own largest one ("current scaling"), or that of the history where it has one ("delayed
/// scaling": x is read once; what is larger is cut off). R and C are multiples of kFp8Unit.
Fp8Matrix to_fp8(ExecutionContext& context, const Tensor& x, Fp8Format format, Fp8Forms forms,
                 const Fp8Amax& amax = {});

/// A weight in E4M3. Where the context keeps packed weights both copies are made at the first use
/// after each change, and kept; else those that are wanted, for the caller.
Fp8Matrix weight_to_fp8(ExecutionContext& context, const PackedWeight& w, Fp8Forms forms,
                        const Fp8Amax& amax = {});

/// Where casts of weights are kept, those of this one are there and as the weight is. Before work
/// that is repeated as it was captured: it would have those casts in it that were stale then.
void refresh_fp8_weight(ExecutionContext& context, const PackedWeight& w, const Fp8Amax& amax = {});

/// The end of a step: every row of history f32 [N, kFp8History] begins with its number of current
/// f32 [N] and loses its oldest; current is 0 then.
void roll_fp8_history(ExecutionContext& context, Tensor& history, Tensor& current);

/// y [M, N] (bf16) = a [M, K] . b [N, K]^T + bias [N] (f32; may be undefined), summed in f32. At
/// most one of the two is in E5M2.
void multiply_fp8(ExecutionContext& context, const Fp8Operand& a, const Fp8Operand& b,
                  const Tensor& bias, Tensor& y);
/// dw [M, N] (f32, dense) += a . b^T, or = where it is replaced.
void weight_gradient_fp8(ExecutionContext& context, const Fp8Operand& a, const Fp8Operand& b,
                         Tensor& dw, WriteMode mode = WriteMode::add);

/// What a backend keeps of a weight that is multiplied in FP8.
class Fp8Copies final : public PackedCopies {
 public:
  std::size_t bytes() const override;
  void mark_stale() { fresh = false; }

  Fp8Matrix matrix;
  bool fresh = false;
};

}  // namespace sortie::trainer::ops
