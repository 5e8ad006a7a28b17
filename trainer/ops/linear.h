// Matrix products of linear layers. Weights are [out, in]; x and y are [.., in] and [.., out] with
// strided rows. Sums are in f32 whatever the dtype.
#pragma once

#include <cstdint>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// A weight in the layouts that the products like best, made on first use after each change.
/// `plain` [N, K] (f32 or bf16) is owned by the parameter buffer; call changed() after it was
/// written.
class PackedWeight {
 public:
  explicit PackedWeight(Tensor plain);
  ~PackedWeight();
  PackedWeight(PackedWeight&&) noexcept;

  const Tensor& plain() const;
  void changed();                    // drops the packed copies (memory is kept for the next ones)
  std::size_t packed_bytes() const;  // of that memory

  struct Impl;  // defined in linear_cpu.cc
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// y [M, N] = x [M, K] . W^T + bias [N] (f32; may be undefined). y's dtype may be x's dtype or f32.
void linear_forward(ExecutionContext& context, const Tensor& x, const PackedWeight& w,
                    const Tensor& bias, Tensor& y);

/// dx [M, K] = dy [M, N] . W
void linear_backward_data(ExecutionContext& context, const Tensor& dy, const PackedWeight& w,
                          Tensor& dx);

/// dw [N, K] (f32, dense) += dy^T . x ; dbias [N] (f32) += column sums of dy. Either may be
/// undefined: it is not wanted.
void linear_backward_weight(ExecutionContext& context, const Tensor& dy, const Tensor& x,
                            Tensor& dw, Tensor& dbias);

/// LM head and cross-entropy in one, in chunks of rows so that logits [M, V] never exist as a
/// whole:
///   logits = h . W^T ; loss_sum += sum over rows with target >= 0 of -log softmax(logits)[target]
/// and, when dh is defined, at once the gradients of `grad_scale * loss_sum` (dw only where
/// defined):
///   dh [M, K] = grad_scale * (softmax - onehot) . W ;  dw [N, K] (f32) += grad_scale * (softmax -
///   onehot)^T . h
/// Columns >= vocab_size (padding of W) are left out of the softmax and get zero gradient.
/// Source: cross-entropy of a softmax; gradient p - y. Returns the number of counted rows.
struct CrossEntropyResult {
  double loss_sum = 0.0;
  std::int64_t count = 0;
};
CrossEntropyResult linear_cross_entropy(ExecutionContext& context, const Tensor& h,
                                        const PackedWeight& w,
                                        const Tensor& targets /* i32 [M], -100 = not counted */,
                                        std::int64_t vocab_size, float grad_scale, Tensor dh,
                                        Tensor dw);

}  // namespace sortie::trainer::ops
