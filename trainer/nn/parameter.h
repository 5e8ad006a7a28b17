// Parameters and the flat buffers that own their memory.
//
// A parameter is (buffer, offset): f32 master weights, f32 gradients and the two AdamW moments, f32
// or bf16, lie in four flat buffers of one layout; with bf16 compute a fifth holds the bf16 copies.
// The layout is the order in which gradients become final (the reverse of the order of
// declaration), so that a bucket of gradients is a contiguous range that fills up from its front
// during the backward pass. What is not trained comes after all that is: the buffers of gradients
// and moments end before it. Where routed experts are summed over ranks of their own (share(),
// expert_ranks), they are a range by themselves behind the other parameters of their kind.
//
// A sharded store (shard()) has moments of this rank's share alone, and where it computes in bf16
// f32 masters of that share alone: matrices then come first and what ops read as f32 behind them,
// so that both are ranges of buckets. The f32 buffer is then [own masters of matrices, whole: the
// rest of what is trained, what is not].
//
// Where everything is sharded, all buffers hold this rank's share alone, frozen weights included,
// and are d times smaller than the flat range; what the model writes (Use::state) lies behind,
// whole. Ops see a parameter's values and its gradient in the room of its unit (units.h): they are
// there from the moment of their use until another unit is used that has the same room.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/nn/cut.h"
#include "trainer/nn/shares.h"
#include "trainer/nn/units.h"
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
struct TensorGroup;
struct ExpertGroup;

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

class ParameterStore {
 public:
  /// Of a rank that shares each layer with the ranks of a group, which must outlive the store;
  /// null: it has whole layers. The same of the routed experts, of which it has some.
  explicit ParameterStore(const TensorGroup* tensor_group = nullptr,
                          const ExpertGroup* expert_group = nullptr)
      : tensor_group_(tensor_group), expert_group_(expert_group) {}
  const TensorGroup* tensor_group() const { return tensor_group_; }
  const ExpertGroup* expert_group() const { return expert_group_; }

  /// Declares a parameter; the reference stays valid for the life of the store. Names are unique.
  Parameter& add(ParameterSpec spec);

  /// Takes this rank's parts; without a call every parameter is whole. ErrorCode::config where a
  /// parameter does not divide into so many. Before finalize().
  Result<> cut(const CutPlaces& places);
  /// Keeps the optimizer's state of a share of what is trained alone, or of everything; before
  /// finalize(), whose alignment is then a multiple of rules.dense.count x 16. Everything only
  /// where the same ranks hold experts and all else.
  void share(const ShareRules& rules);
  void shard(const ShareRule& rule) { share({.dense = rule}); }
  /// This rank among those that hold the same parameters.
  struct Member {
    int index = 0, count = 1;
  };
  /// One momentum, moment1(), instead of two moments, which every member has for itself; before
  /// finalize(). Not of a sharded store.
  void keep_own_momentum(Member member) { own_momentum_ = member; }
  const std::optional<Member>& own_momentum() const { return own_momentum_; }
  /// What moments are kept in, f32 or bf16; before finalize().
  void keep_moments_in(DType dtype) { moment_dtype_ = dtype; }
  DType moment_dtype() const { return moment_dtype_; }
  /// Linear layers are multiplied in FP8 where they are bf16 otherwise, and rows and columns of
  /// this rank's part are multiples of ops::kFp8Unit; before finalize(). Nothing that is kept
  /// changes, but for `delayed` scaling, which keeps largest values of each linear layer, in FP8 or
  /// not: x, weight and gradient, in the order of declaration.
  void multiply_in_fp8(bool delayed = false) {
    fp8_ = true;
    fp8_delayed_ = delayed;
  }
  bool multiplies_in_fp8() const { return fp8_; }
  /// f32 [3 layers, ops::kFp8History] and [3 layers], after finalize() with an optimizer; undefined
  /// without delayed scaling.
  Tensor& fp8_history() { return fp8_history_; }
  Tensor& fp8_current() { return fp8_current_; }
  bool sharded() const { return rules_.dense.count > 1 || rules_.experts.count > 1; }
  /// Of weights too: ops have them from units() that are gathered.
  bool gathers() const { return rules_.dense.count > 1 && rules_.dense.everything; }
  /// No other replica has the f32 values of what this rank has of the parameter.
  bool keeps_share_of(const Parameter& parameter) const {
    return gathers() ? parameter.spec().use != Use::state : sharded() && parameter.trained();
  }
  /// Which ranks hold a parameter alike: those of the dense ones, or those of the same experts.
  ReduceGroup held_by(const Parameter& parameter) const {
    return rules_.expert_ranks > 0 ? parameter.spec().cut.group : ReduceGroup::dense;
  }
  /// Lays out and allocates the buffers. `alignment` elements (the data-parallel size x 16) divide
  /// what is trained, so that this flat range can be sharded evenly. Gradients and moments are
  /// zero, weights unset.
  void finalize(ExecutionContext& context, DType compute, std::int64_t alignment,
                bool with_optimizer);
  void initialize(std::uint64_t seed);

  const std::vector<std::unique_ptr<Parameter>>& parameters() const {
    return parameters_;
  }  // as declared
  /// By its name, in constant time; null where there is none.
  Parameter* find(std::string_view name);

  std::int64_t flat_elements() const { return flat_elements_; }        // with padding
  std::int64_t trained_elements() const { return trained_elements_; }  // of them, in front
  std::int64_t parameter_elements() const;                             // without padding and state
  DType compute_dtype() const { return compute_; }
  /// Of a sharded store, in the order of the flat buffers; empty otherwise. Where everything is
  /// sharded, the ranges of all units.
  const std::vector<FlatRange>& buckets() const { return buckets_; }
  /// This rank's share of a bucket.
  FlatRange own_share(std::size_t bucket) const {
    return share_of_bucket(buckets_[bucket], rule_of(section_at(buckets_[bucket].begin).group));
  }
  /// A range of what is trained that the same ranks hold: together they are all of it.
  struct Section {
    FlatRange range;
    ReduceGroup group = ReduceGroup::dense;
  };
  const std::vector<Section>& sections() const { return sections_; }
  /// The one that has this element.
  const Section& section_at(std::int64_t element) const;
  /// The whole values of a range of one bucket as ops take them: bf16 copies of matrices, or f32.
  /// Not where everything is sharded.
  Tensor values_of(FlatRange range);
  /// Where the update of an own run leaves bf16 copies; undefined where it leaves none.
  Tensor copies_of(const Parameter& parameter, const OwnRun& run);
  /// The gradients of an own run.
  Tensor gradients_of(const OwnRun& run) {
    return gradients_.slice(0, run.values, run.flat.elements());
  }
  /// Where a parameter that every replica has whole in the f32 weights begins there; -1: it is
  /// whole in the compute copies alone. Not where everything is sharded.
  std::int64_t whole_master_place(const Parameter& parameter) const {
    const bool cut = parameter.trained() && parameter.offset() < cut_masters_;
    return cut ? -1 : whole_master_at(parameter.offset());
  }

  /// What is gathered as one, where everything is sharded; empty otherwise.
  const std::vector<Unit>& units() const { return units_; }
  std::size_t rooms() const { return rooms_.size(); }
  /// Of a range of a unit: this rank's share of the values that ops take, and in the unit's room
  /// all of them.
  Tensor own_values(const UnitRange& range);
  Tensor whole_values(const Unit& unit, const UnitRange& range);
  /// The same of gradients, of a range that is trained.
  Tensor own_gradients(const UnitRange& range);
  Tensor whole_gradients(const Unit& unit, const UnitRange& range);
  /// This rank's share of such a whole.
  Tensor own_part_of(const Tensor& whole) const;
  /// Memory of the rooms: of values, and of gradients.
  std::int64_t room_value_bytes() const;
  std::int64_t room_gradient_bytes() const;
  /// Of finalize().
  ExecutionContext& context() { return *context_; }
  /// The flat buffers, f32 [elements] but for the bf16 copy, which is undefined when compute is
  /// f32, and moments of moment_dtype(). Where the store is sharded, own_runs() tell what is where.
  Tensor& master() { return master_; }
  const Tensor& master() const { return master_; }
  Tensor& gradients() { return gradients_; }  // and moments: of what is trained
  const Tensor& gradients() const { return gradients_; }
  Tensor& moment1() { return moment1_; }
  const Tensor& moment1() const { return moment1_; }
  Tensor& moment2() { return moment2_; }  // undefined with own_momentum()
  const Tensor& moment2() const { return moment2_; }
  Tensor& compute_copy() { return compute_copy_; }
  const Tensor& compute_copy() const { return compute_copy_; }

  void zero_gradients();
  /// From here on zero_gradients() leaves those of product_gradient as they are, until the next
  /// step writes them: its first product takes their place (Parameter::add_product()), and what is
  /// not written by one is zeroed when it is needed. So the largest part of the buffer is neither
  /// zeroed nor read back. Only where all passes of a step write to one buffer and are given to the
  /// device in the order in which they are called. Not where everything is sharded.
  void keep_old_gradients();
  /// After the passes of a step: zeroes what none of them has written.
  void zero_unwritten_gradients();
  /// What a graph of the passes, or of the update, has done on the device: all are written, or
  /// zeroed but for those of an earlier step.
  void gradients_written() { mark_gradients(/*old=*/false); }
  void gradients_zeroed() { mark_gradients(/*old=*/true); }
  /// Of a pass that has ended with an exception: its uses of parameters will not be done.
  void forget_uses();
  /// Call after the master weights were written other than through ops::adamw: refreshes the bf16
  /// copies; of a sharded store those of the own share.
  void refresh_compute_copy(ExecutionContext& context);
  /// Call after any change of the weights: drops packed layouts.
  void weights_changed();
  /// Casts of weights to FP8 that are kept are those of the weights as they are now: before passes
  /// that are captured, or launched as a graph.
  void refresh_fp8_weights();

  /// Called when a parameter's gradient is final; unset = gradients only accumulate.
  void set_on_final(std::function<void(Parameter&)> on_final) { on_final_ = std::move(on_final); }
  /// Called before values are used, as long as they may be on their way: with the parameter, which
  /// is not of Use::state, or null for all of them.
  void set_on_use(std::function<void(const Parameter*)> on_use) { on_use_ = std::move(on_use); }
  /// Called before a gradient is written.
  void set_on_gradient(std::function<void(const Parameter&)> on_gradient) {
    on_gradient_ = std::move(on_gradient);
  }
  /// Before the buffers are read or written by others than ops: what is on its way arrives first.
  void await_values() {
    if (on_use_) on_use_(nullptr);
  }

 private:
  static Result<> take_part(Parameter& parameter, const CutPlaces& places);
  const ShareRule& rule_of(ReduceGroup group) const {
    return group == ReduceGroup::expert ? rules_.experts : rules_.dense;
  }
  const TensorGroup* tensor_group_;
  const ExpertGroup* expert_group_;
  /// What the units of a room have in turns.
  struct Room {
    Tensor narrow, wide, gradients;  // bf16, f32, f32; undefined where no unit has any
  };
  void keep_amaxes();
  void mark_gradients(bool old);
  void lay_out(std::int64_t alignment);
  void lay_out_units(std::int64_t alignment);
  void make_rooms(bool with_gradients);
  /// Where ops find the values of a parameter, and its gradient, of a unit.
  void place_in_room(Parameter& parameter);
  void find_own_runs();
  /// In the f32 weights, of an element that every replica has there.
  std::int64_t whole_master_at(std::int64_t offset) const {
    return offset - cut_masters_ + own_masters_;
  }
  bool is_narrow(const Parameter& parameter) const {
    return parameter.spec().use == Use::matrix && compute_ == DType::bf16;
  }
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::unordered_map<std::string_view, Parameter*> by_name_;  // keys: the names in the specs
  ExecutionContext* context_ = nullptr;
  std::int64_t flat_elements_ = 0, trained_elements_ = 0;
  DType compute_ = DType::f32;
  ShareRules rules_;
  std::optional<Member> own_momentum_;
  DType moment_dtype_ = DType::f32;
  bool fp8_ = false, fp8_delayed_ = false;
  std::vector<Parameter*> replaced_;    // whose gradients may be of an earlier step
  std::vector<FlatRange> always_zero_;  // all other gradients
  std::vector<Section> sections_;
  std::vector<FlatRange> buckets_;
  std::vector<std::int64_t>
      own_begins_;  // by bucket: elements of the own shares before it, and all
  // In front, what has f32 masters of this rank's share alone; of them, that share.
  std::int64_t cut_masters_ = 0, own_masters_ = 0;
  std::vector<Unit> units_;
  std::vector<RoomSize> room_sizes_;
  std::vector<Room> rooms_;
  Tensor master_, gradients_, moment1_, moment2_, compute_copy_;
  Tensor fp8_history_, fp8_current_;
  std::function<void(Parameter&)> on_final_;
  std::function<void(const Parameter*)> on_use_;
  std::function<void(const Parameter&)> on_gradient_;
};

}  // namespace sortie::trainer
