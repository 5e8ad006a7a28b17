// Matrix products of linear layers. Weights are [out, in]; x and y are [.., in] and [.., out] with
// strided rows. Sums are in f32 whatever the dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// What a product does with the values that are where it writes.
enum class WriteMode : std::uint8_t { add, replace };

/// What a backend keeps of a weight: copies in the layouts that its products like best.
class PackedCopies {
 public:
  virtual ~PackedCopies() = default;
  virtual std::size_t bytes() const = 0;
};

/// A weight that is multiplied. `plain` [N, K] (f32 or bf16) is owned by the parameter buffer; call
/// weight_changed() after it was written. A backend makes its copies on first use after each
/// change.
class PackedWeight {
 public:
  explicit PackedWeight(Tensor plain);

  const Tensor& plain() const { return plain_; }
  std::size_t packed_bytes() const { return copies_ ? copies_->bytes() : 0; }
  /// The backend's; null until it is set.
  std::unique_ptr<PackedCopies>& copies() const { return copies_; }

 private:
  Tensor plain_;
  mutable std::unique_ptr<PackedCopies> copies_;
};

/// Drops the packed copies (their memory is kept for the next ones).
void weight_changed(ExecutionContext& context, const PackedWeight& w);

/// y [M, N] = x [M, K] . W^T + bias [N] (f32; may be undefined). y's dtype may be x's dtype or f32.
void linear_forward(ExecutionContext& context, const Tensor& x, const PackedWeight& w,
                    const Tensor& bias, Tensor& y);

/// dx [M, K] = dy [M, N] . W
void linear_backward_data(ExecutionContext& context, const Tensor& dy, const PackedWeight& w,
                          Tensor& dx);

/// dw [N, K] (f32, dense) += dy^T . x, or = where it is replaced; dbias [N] (f32) += column sums of
/// dy. Either may be undefined: it is not wanted.
void linear_backward_weight(ExecutionContext& context, const Tensor& dy, const Tensor& x,
                            Tensor& dw, Tensor& dbias, WriteMode mode_of_dw = WriteMode::add);

/// dbias [N] (f32) += column sums of dy [M, N], by themselves.
void add_bias_gradient(ExecutionContext& context, const Tensor& dy, Tensor& dbias);

/// LM head and cross-entropy in one, in chunks of rows so that logits [M, V] never exist as a
/// whole:
///   logits = h . W^T
///   loss f64 [2] += (loss_scale * sum over rows with target >= 0 of -log softmax(logits)[target],
///                    number of these rows)
/// and, when dh is defined, at once the gradients of `grad_scale` * that sum (dw only where
/// defined):
///   dh [M, K] = grad_scale * (softmax - onehot) . W ;  dw [N, K] (f32) += grad_scale * (softmax -
///   onehot)^T . h
/// Columns >= vocab_size (padding of W) are left out of the softmax and get zero gradient.
/// targets: i32 [M], negative = not counted (ops/targets.h). Source: cross-entropy of a softmax;
/// gradient p - y.
struct CrossEntropySpec {
  std::int64_t vocab_size = 0;
  float grad_scale = 0.0f;
  double loss_scale = 1.0;
  std::int64_t first_token = 0;  // of W's rows, where W is a part of all
  /// f32 [1] on the device, another factor of grad_scale; undefined = 1.
  Tensor step_scale{};
  /// Of linear_cross_entropy(). Where dw is replaced, its rows of padding hold 0 before.
  WriteMode mode_of_dw = WriteMode::add;
};
void linear_cross_entropy(ExecutionContext& context, const Tensor& h, const PackedWeight& w,
                          const Tensor& targets, const CrossEntropySpec& spec, Tensor& dh,
                          Tensor& dw, Tensor& loss);

/// The same where ranks have rows [first_token, first_token + V) of W each, for up to
/// cross_entropy_rows() rows of h, in two stages with an exchange in between. The first:
struct CrossEntropyPart {
  Tensor exponentials,
      tile_max;  // of the own columns, for the second stage; the backend's business
  Tensor stats;  // f64 [M, 3]: largest logit, sum of exponentials against it, the target's logit
};
CrossEntropyPart begin_cross_entropy(ExecutionContext& context, const Tensor& h,
                                     const PackedWeight& w, const Tensor& targets,
                                     const CrossEntropySpec& spec, bool with_gradients);
/// The second, with the stats f64 [ranks, M, 3] of all: loss is that of the whole vocabulary, the
/// same on every rank, and dh the own columns' part of the sum over ranks.
void finish_cross_entropy(ExecutionContext& context, const Tensor& h, const PackedWeight& w,
                          const Tensor& targets, const CrossEntropySpec& spec,
                          const CrossEntropyPart& part, const Tensor& all_stats, Tensor& dh,
                          Tensor& dw, Tensor& loss);
/// The most rows of h of these stages.
std::int64_t cross_entropy_rows();

/// The two numbers of `loss`, on the host.
struct CrossEntropyResult {
  double loss_sum = 0.0;
  std::int64_t count = 0;
};
CrossEntropyResult read_cross_entropy(ExecutionContext& context, const Tensor& loss);

/// w [N, K] += scale * up [N, R] . down [R, K], all f32 and dense; up becomes zero.
void merge_low_rank(ExecutionContext& context, Tensor& up, const Tensor& down, float scale,
                    Tensor& w);

}  // namespace sortie::trainer::ops
