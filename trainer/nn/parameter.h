// A parameter of a model: its declaration, the place of this rank's part in the flat buffers of a
// store (parameter_store.h), and its gradient.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/nn/cut.h"
#include "trainer/nn/shares.h"
#include "trainer/ops/fp8.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

/// Distribution of the initial values. A value is a function of (seed, name, index in the whole
/// parameter), independent of how the parameter is cut and laid out.
struct Init {
  enum class Kind { zeros, ones, normal } kind = Kind::zeros;
  double std_dev = 0.0;
  static Init zeros() { return {Kind::zeros, 0.0}; }
  static Init ones() { return {Kind::ones, 0.0}; }
  static Init normal(double std_dev) { return {Kind::normal, std_dev}; }
};

enum class Use {
  matrix,      // multiplied in the compute dtype
  f32_matrix,  // multiplied in f32: routers
  vector,      // f32
  state,  // f32, written by the model: no gradient, no optimizer, saved and restored as weights
};

struct ParameterSpec {
  std::string name;  // global, e.g. "layers.0.attention.qkv.weight"
  Shape shape;       // of the whole parameter: [rows, cols] or [cols]
  Init init;
  Use use = Use::matrix;
  bool decay = true;                // weight decay: matrices yes, vectors no
  std::vector<Segment> segments{};  // of the rows; empty = one segment
  CutRule cut{};
  /// Set if this is a copy of a parameter that is on another rank (an output layer tied to the
  /// embedding): the name of that parameter. The copy has the same initial values and is saved
  /// under that name. Empty: not a copy.
  std::string tied_to{};
  /// The weight of a linear layer, which may be multiplied in FP8
  /// (ParameterStore::multiply_in_fp8()).
  bool fp8 = false;
  /// The first write to its gradient in a step is a product (ParameterStore::keep_old_gradients()).
  bool product_gradient = false;
  /// Its name in the whole model.
  const std::string& whole_name() const { return tied_to.empty() ? name : tied_to; }
};

class Parameter;

/// The part of an own run that is in one block of the whole parameter.
struct OwnPart {
  const GlobalBlock* block = nullptr;
  std::int64_t in_block = 0;  // elements of the block before this part
  OwnRun run;
};

/// A low-rank update of a matrix: W x becomes W x + scale * up . (down . x)  (Hu et al. 2021).
struct LowRank {
  Parameter* down = nullptr;  // [rank, in]
  Parameter* up = nullptr;    // [out, rank]
  float scale = 1.0f;
};

class Parameter {
 public:
  const std::string& name() const { return spec_.name; }
  const ParameterSpec& spec() const { return spec_; }
  std::int64_t offset() const { return offset_; }  // in elements of every flat buffer
  /// Elements of this rank's part; of the whole parameter before ParameterStore::cut().
  std::int64_t elements() const { return shape_.elements(); }
  const Shape& shape() const { return shape_; }
  /// The blocks of the whole parameter that this rank has, in the order of the buffers.
  const std::vector<GlobalBlock>& blocks() const { return blocks_; }

  /// The runs of f32 weights that this rank keeps, updates and saves, in ascending order; the whole
  /// part if the store does not shard it.
  const std::vector<OwnRun>& own_runs() const { return own_runs_; }
  /// The same runs, split where one of blocks() ends.
  std::vector<OwnPart> own_parts() const;

  /// The values in the type that ops read: the compute dtype for Use::matrix, f32 otherwise. If
  /// they are still being received from other ranks, work that is added to the current stream after
  /// this call waits for them.
  const Tensor& weight() const {
    await();
    return weight_;
  }
  const ops::PackedWeight& packed() const {
    await();
    return *packed_;
  }
  std::size_t packed_bytes() const { return packed_ ? packed_->packed_bytes() : 0; }
  /// The f32 gradient, to be added to; undefined if not trained. Is zeroed first if it is left from
  /// an earlier step.
  Tensor& grad() {
    if (has_old_gradient_) clear_gradient();
    if (on_gradient_ != nullptr && *on_gradient_ && trained()) (*on_gradient_)(*this);
    return grad_;
  }
  /// Calls write(gradient, mode) for a product that adds to the gradient, or that replaces the
  /// gradient of an earlier step (ParameterStore::keep_old_gradients()).
  template <class Write>
  void add_product(const Write& write) {
    const bool old = std::exchange(has_old_gradient_, false);
    write(grad(), old ? ops::WriteMode::replace : ops::WriteMode::add);
  }

  /// Whether products with it run in FP8, if x has a suitable number of rows. Valid after
  /// finalize().
  bool in_fp8() const { return in_fp8_; }
  /// The amax records of the three tensors of such a product; undefined without delayed scaling.
  struct Fp8Amaxes {
    ops::Fp8Amax x, weight, gradient;
  };
  const Fp8Amaxes& fp8_amaxes() const { return fp8_amaxes_; }

  /// Freezes the parameter: it keeps its values. Call before store.finalize().
  void freeze() { frozen_ = true; }
  bool frozen() const { return frozen_; }
  /// Whether it has a gradient and is updated.
  bool trained() const { return !frozen_ && spec_.use != Use::state; }
  const std::optional<LowRank>& low_rank() const { return low_rank_; }
  void set_low_rank(const LowRank& low_rank) { low_rank_ = low_rank; }

  /// Elements that no token needs, such as those that pad a vocabulary to a round number. Reported
  /// sizes exclude them.
  std::int64_t padding() const { return padding_; }
  void set_padding(std::int64_t elements) { padding_ = elements; }
  /// The fraction of tokens that use the parameter: 1, or k / E for an expert.
  double token_share() const { return token_share_; }
  void set_token_share(double share) { token_share_ = share; }
  /// The unit that it is gathered with if everything is sharded; not for Use::state.
  std::size_t unit() const { return unit_; }

  /// Bookkeeping of the tape, for trained parameters: a use was recorded / its gradient was added.
  /// After the last use is done the gradient of this micro-batch is final.
  void use_recorded() { ++pending_uses_; }
  void use_done();
  /// For tests.
  int pending_uses() const { return pending_uses_; }

 private:
  friend class ParameterStore;
  void clear_gradient();
  void await() const {
    if (on_use_ != nullptr && *on_use_ && spec_.use != Use::state) (*on_use_)(this);
  }
  ParameterSpec spec_;
  Shape shape_;
  std::vector<GlobalBlock> blocks_;
  std::int64_t offset_ = 0;
  std::size_t unit_ = 0;
  std::vector<OwnRun> own_runs_;
  Tensor weight_, grad_;
  std::optional<ops::PackedWeight> packed_;
  std::optional<LowRank> low_rank_;
  std::int64_t padding_ = 0;
  double token_share_ = 1.0;
  bool frozen_ = false, in_fp8_ = false;
  Fp8Amaxes fp8_amaxes_;
  int pending_uses_ = 0;
  bool has_old_gradient_ = false;
  ExecutionContext* context_ = nullptr;
  const std::function<void(Parameter&)>* on_final_ = nullptr;
  const std::function<void(const Parameter*)>* on_use_ = nullptr;
  const std::function<void(const Parameter&)>* on_gradient_ = nullptr;
};

}  // namespace sortie::trainer
