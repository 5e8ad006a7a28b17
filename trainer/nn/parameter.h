// A parameter of a model: what it is declared as, where this rank's part of it lies in the flat
// buffers of a store (parameter_store.h), and its gradient.
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

/// Where the initial values come from; a value is a function of (seed, name, index in the whole
/// parameter), however it is cut and laid out.
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
  Shape shape;       // of the whole: [rows, cols] or [cols]
  Init init;
  Use use = Use::matrix;
  bool decay = true;                // weight decay: matrices yes, vectors no
  std::vector<Segment> segments{};  // of the rows; empty = one segment
  CutRule cut{};
  /// The parameter whose values this one repeats where the two are on different ranks (an output
  /// layer tied to the embedding): it starts from the same values and is saved as that one. Empty:
  /// none.
  std::string tied_to{};
  /// Of a linear layer: multiplied in FP8 where the store is told to.
  bool fp8 = false;
  /// A product is the first to write its gradient in a step (ParameterStore::keep_old_gradients()).
  bool product_gradient = false;
  /// In the whole model.
  const std::string& whole_name() const { return tied_to.empty() ? name : tied_to; }
};

class Parameter;

/// Of an own run, what is in one block of the whole.
struct OwnPart {
  const GlobalBlock* block = nullptr;
  std::int64_t in_block = 0;  // elements of the block before it
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
  /// Of this rank's part; before finalize() of the whole.
  std::int64_t elements() const { return shape_.elements(); }
  const Shape& shape() const { return shape_; }
  /// What this rank's part is of the whole, in the order in which it lies in the buffers.
  const std::vector<GlobalBlock>& blocks() const { return blocks_; }

  /// What this rank has of it in the f32 weights to update and to save, upwards; all of it where
  /// the store is not sharded.
  const std::vector<OwnRun>& own_runs() const { return own_runs_; }
  /// The same, cut where one of blocks() ends.
  std::vector<OwnPart> own_parts() const;

  /// The values as ops take them: compute dtype for matrices, f32 for vectors. What the current
  /// stream is given from then on finds them, where they are still on their way from other ranks.
  const Tensor& weight() const {
    await();
    return weight_;
  }
  const ops::PackedWeight& packed() const {
    await();
    return *packed_;
  }
  std::size_t packed_bytes() const { return packed_ ? packed_->packed_bytes() : 0; }
  /// f32, accumulated into; undefined when not trained.
  Tensor& grad() {
    if (has_old_gradient_) clear_gradient();
    if (on_gradient_ != nullptr && *on_gradient_ && trained()) (*on_gradient_)(*this);
    return grad_;
  }
  /// Calls write(gradient, mode): a product that adds to the gradient, or takes the place of one of
  /// an earlier step (ParameterStore::keep_old_gradients()).
  template <class Write>
  void add_product(const Write& write) {
    const bool old = std::exchange(has_old_gradient_, false);
    write(grad(), old ? ops::WriteMode::replace : ops::WriteMode::add);
  }

  /// After finalize(): products with it are in FP8, where x has rows for that.
  bool in_fp8() const { return in_fp8_; }
  /// Of these products, where they have delayed scaling: what is known of each tensor.
  struct Fp8Amaxes {
    ops::Fp8Amax x, weight, gradient;
  };
  const Fp8Amaxes& fp8_amaxes() const { return fp8_amaxes_; }

  /// A frozen parameter keeps its values. Decided before store.finalize().
  void freeze() { frozen_ = true; }
  bool frozen() const { return frozen_; }
  /// It has a gradient and an update.
  bool trained() const { return !frozen_ && spec_.use != Use::state; }
  const std::optional<LowRank>& low_rank() const { return low_rank_; }
  void set_low_rank(const LowRank& low_rank) { low_rank_ = low_rank; }

  /// Elements that no token needs, as those that fill a vocabulary up to a round number: sizes that
  /// are told leave them out.
  std::int64_t padding() const { return padding_; }
  void set_padding(std::int64_t elements) { padding_ = elements; }
  /// How many of the tokens meet it: 1, or the k / E of an expert.
  double token_share() const { return token_share_; }
  void set_token_share(double share) { token_share_ = share; }
  /// Where everything is sharded, the unit that it is gathered with; not of Use::state.
  std::size_t unit() const { return unit_; }

  /// Bookkeeping of the tape: a use was recorded / its gradient is in. When the last one is in, the
  /// gradient of this micro-batch is final. Of trained ones alone.
  void use_recorded() { ++pending_uses_; }
  void use_done();
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
