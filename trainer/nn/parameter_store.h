// ParameterStore: the parameters of a model, and the flat buffers that own their memory.
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
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/nn/parameter.h"
#include "trainer/nn/units.h"

namespace sortie::trainer {

struct TensorGroup;
struct ExpertGroup;

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
