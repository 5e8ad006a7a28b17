// Sortie's own row kernels, as tables of function pointers, one table per instruction set. isa_*.cc
// compile the bodies (body_*.h) once per set. The files of ops/cpu split the rows over threads and
// call the kernels through the table of their context.
#pragma once

#include <cstdint>

#include "trainer/ops/isa.h"

namespace sortie::trainer::ops {

/// Arguments of a norm over rows; pointers are to row 0, strides in elements.
struct NormForwardRows {
  const void* residual;
  const void* branch;  // null: none
  void* residual_out;  // not written without branch
  void* y;
  const float* weight;
  const float* bias;  // null: none
  float* stats;       // [rows, 2]
  std::int64_t cols, residual_stride, branch_stride, residual_out_stride, y_stride;
  float eps;
  bool layer;
};
struct NormBackwardRows {
  const void* dy;
  const void* dresidual;  // null: none
  const void* x;
  void* dx;
  const float* weight;
  const float* stats;
  float* dweight;  // [cols], added to
  float* dbias;    // null: none
  std::int64_t cols, dy_stride, dresidual_stride, x_stride, dx_stride;
  bool layer;
};

/// State of the dropout generator for a run of elements whose numbers do not cross a multiple of
/// 2^32.
struct DropoutRow {
  std::uint32_t key0, key1;
  std::uint32_t begin;      // number of the first element
  std::uint32_t threshold;  // an element is kept if its 32 random bits are at least this
  float scale;              // of the kept elements
};

/// Kernels over activations of one dtype.
struct TypedKernels {
  void (*norm_forward)(const NormForwardRows& rows, std::int64_t begin, std::int64_t end);
  void (*norm_backward)(const NormBackwardRows& rows, std::int64_t begin, std::int64_t end);
  void (*swiglu_forward)(const void* gate, const void* up, void* y, std::int64_t n);
  void (*swiglu_backward)(const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                          std::int64_t n);
  void (*gelu_forward)(const void* x, void* y, std::int64_t n);
  void (*gelu_backward)(const void* dy, const void* x, void* dx, std::int64_t n);
  void (*gelu_new_forward)(const void* x, void* y, std::int64_t n);
  void (*gelu_new_backward)(const void* dy, const void* x, void* dx, std::int64_t n);
  void (*add)(const void* a, const void* b, void* y, std::int64_t n);
  void (*add_to_f32)(float* sum, const void* x, std::int64_t n);  // sum += x
  void (*add_scaled_to_f32)(float* sum, const void* x, std::int64_t n, float factor);
  void (*from_f32)(const float* x, void* y, std::int64_t n);
  void (*to_f32)(const void* x, float* y, std::int64_t n);
  float (*dot)(const void* a, const void* b, std::int64_t n);
  /// The first 2 * half elements of one head; sign = -1 rotates back.
  void (*rope)(void* x, const float* cos, const float* sin, std::int64_t half, float sign);
  /// The same for pairs of neighbouring elements.
  void (*rope_interleaved)(void* x, const float* cos, const float* sin, std::int64_t half,
                           float sign);
  /// p[0, n) = softmax(scale * s[0, n)), p[n, width) = 0; s is overwritten. Returns log-sum-exp.
  float (*softmax)(float* s, void* p, std::int64_t n, std::int64_t width, float scale);
  /// The softmax of a part of a row. Over the earlier parts, `max` is the largest scaled score
  /// (-inf for the first part) and `sum` the sum of exp(scale * s - max). p[0, n) = exp(scale * s -
  /// new max), p[n, width) = 0. Updates max and sum. Returns the factor that converts results
  /// relative to the old max into results relative to the new one.
  float (*softmax_part)(const float* s, void* p, std::int64_t n, std::int64_t width, float scale,
                        float* max, float* sum);
  /// p = exp(scale * s - lse), ds = scale * p * (dp - delta) on [0, n); both 0 on [n, width).
  void (*softmax_backward)(const float* s, const float* dp, void* p, void* ds, std::int64_t n,
                           std::int64_t width, float scale, float lse, float delta);
  /// e = exp(logits - max) over n columns. Returns the sum of e, and the maximum in `max`.
  float (*exp_row)(const float* logits, void* e, std::int64_t n, float* max);
  void (*scale)(void* x, std::int64_t n, float factor);  // x *= factor
  void (*dropout)(const DropoutRow& row, const void* x, void* y, std::int64_t n);
};

struct AdamWRow {
  float step_size;                               // lr / correction1
  float beta1, beta2, rest1, rest2, eps, decay;  // rest = 1 - beta; decay = lr * weight_decay
  float root_correction2;                        // 1 / sqrt(correction2)
  float grad_scale;
};

/// State of the generator that rounds moments, for a run of elements with consecutive numbers that
/// do not cross a multiple of 2^32.
struct RoundingRow {
  std::uint32_t key0, key1;
  std::uint32_t begin;  // number of the first element
};

struct Kernels {
  Isa isa;
  TypedKernels f32, bf16;
  /// compute may be nullptr.
  void (*adamw)(const AdamWRow& step, float* w, const float* grad, float* m, float* v,
                std::uint16_t* compute, std::int64_t n);
  /// The same with moments in bf16.
  void (*adamw_rounded)(const AdamWRow& step, const RoundingRow& rounding, float* w,
                        const float* grad, std::uint16_t* m, std::uint16_t* v,
                        std::uint16_t* compute, std::int64_t n);
  double (*sum_of_squares)(const float* x, std::int64_t n);
};

/// The table of `isa`, which this CPU must support.
const Kernels& kernels_of(Isa isa);

}  // namespace sortie::trainer::ops
