// Matrix products of linear layers. Weights are [out, in]; x and y are [.., in] and [.., out] with
// strided rows. Sums are in f32 whatever the dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// Whether a product adds to the values at its destination or replaces them.
enum class WriteMode : std::uint8_t { add, replace };

/// Copies that a backend keeps of a weight, in the layouts that its products prefer.
class PackedCopies {
 public:
  virtual ~PackedCopies() = default;
  virtual std::size_t bytes() const = 0;
};

/// A weight that is multiplied. `plain` [N, K] (f32 or bf16) is owned by the parameter buffer; call
/// weight_changed() after writing it. A backend makes its copies on first use after each change.
class PackedWeight {
 public:
  explicit PackedWeight(Tensor plain);

  const Tensor& plain() const { return plain_; }
  std::size_t packed_bytes() const { return copies_ ? copies_->bytes() : 0; }
  /// The backend's copies; nullptr until it makes them.
  std::unique_ptr<PackedCopies>& copies() const { return copies_; }

 private:
  Tensor plain_;
  mutable std::unique_ptr<PackedCopies> copies_;
};

/// Marks the packed copies as stale (their memory is kept for the next ones).
void weight_changed(ExecutionContext& context, const PackedWeight& w);

/// y [M, N] = x [M, K] . W^T + bias [N] (f32; may be undefined). y's dtype may be x's dtype or f32.
void linear_forward(ExecutionContext& context, const Tensor& x, const PackedWeight& w,
                    const Tensor& bias, Tensor& y);

/// dx [M, K] = dy [M, N] . W
void linear_backward_data(ExecutionContext& context, const Tensor& dy, const PackedWeight& w,
                          Tensor& dx);

/// dw [N, K] (f32, dense) += dy^T . x, or = with WriteMode::replace; dbias [N] (f32) += column sums
/// of dy. Either is not computed if undefined.
void linear_backward_weight(ExecutionContext& context, const Tensor& dy, const Tensor& x,
                            Tensor& dw, Tensor& dbias, WriteMode mode_of_dw = WriteMode::add);

/// dbias [N] (f32) += column sums of dy [M, N], without a weight gradient. No-op if undefined.
void add_bias_gradient(ExecutionContext& context, const Tensor& dy, Tensor& dbias);

/// Fused LM head and cross-entropy, in chunks of rows so that logits [M, V] never exist as a whole:
///   logits = h . W^T
///   loss f64 [2] += (loss_scale * sum over rows with target >= 0 of -log softmax(logits)[target],
///                    number of these rows)
/// and, if dh is defined, in the same pass the gradients of `grad_scale` * that sum (dw only if
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
  std::int64_t first_token = 0;  // token of W's first row, if W is a part of the vocabulary
  /// f32 [1] on the device, another factor of the gradients; undefined = 1.
  Tensor step_scale{};
  /// For linear_cross_entropy(). With WriteMode::replace, dw's rows of padding must hold 0 before.
  WriteMode mode_of_dw = WriteMode::add;
};
void linear_cross_entropy(ExecutionContext& context, const Tensor& h, const PackedWeight& w,
                          const Tensor& targets, const CrossEntropySpec& spec, Tensor& dh,
                          Tensor& dw, Tensor& loss);

/// The same in two stages with an exchange in between, for ranks that each hold rows [first_token,
/// first_token + V) of W, and for up to cross_entropy_rows() rows of h. The first stage:
struct CrossEntropyPart {
  Tensor exponentials,
      tile_max;  // of this rank's columns, for the second stage; private to the backend
  Tensor stats;  // f64 [M, 3]: largest logit, sum of exp(logit - largest), target's logit or 0
};
CrossEntropyPart begin_cross_entropy(ExecutionContext& context, const Tensor& h,
                                     const PackedWeight& w, const Tensor& targets,
                                     const CrossEntropySpec& spec, bool with_gradients);
/// The second stage, with the stats f64 [ranks, M, 3] of all ranks. loss is that of the whole
/// vocabulary, the same on every rank; dh is this rank's term of the sum over ranks.
void finish_cross_entropy(ExecutionContext& context, const Tensor& h, const PackedWeight& w,
                          const Tensor& targets, const CrossEntropySpec& spec,
                          const CrossEntropyPart& part, const Tensor& all_stats, Tensor& dh,
                          Tensor& dw, Tensor& loss);
/// The maximum number of rows of h per call of these stages.
std::int64_t cross_entropy_rows();

/// The two values of `loss`, copied to the host.
struct CrossEntropyResult {
  double loss_sum = 0.0;
  std::int64_t count = 0;
};
CrossEntropyResult read_cross_entropy(ExecutionContext& context, const Tensor& loss);

/// w [N, K] += scale * up [N, R] . down [R, K], all f32 and dense; sets up to zero.
void merge_low_rank(ExecutionContext& context, Tensor& up, const Tensor& down, float scale,
                    Tensor& w);

}  // namespace sortie::trainer::ops
