// ParameterStore: the parameters of a model, and the flat buffers that own their memory.
//
// A parameter is a range of four flat buffers with one layout: f32 master weights, f32 gradients
// and the two AdamW moments, f32 or bf16. With bf16 compute a fifth buffer holds the bf16 copies.
// The layout is the order in which gradients become final (the reverse of the order of
// declaration), so that a bucket of gradients is a contiguous range that fills up from its front
// during the backward pass. Parameters that are not trained come after all trained ones: the
// buffers of gradients and moments end before them. If routed experts are reduced over other ranks
// than dense parameters (share(), expert_ranks), they are a separate range after the other
// parameters of their kind.
//
// A sharded store (shard()) has only the moments of this rank's share and, with bf16 compute, only
// the f32 masters of that share. Matrices then come first and parameters that ops read as f32 after
// them, so that both are ranges of buckets. The f32 buffer is then [this rank's share of the
// masters of matrices, the other trained parameters whole, the parameters that are not trained
// whole].
//
// If everything is sharded, all buffers hold only this rank's share, frozen weights included, and
// are d times smaller than the flat range, d being the number of replicas. Use::state parameters
// come after it, whole. Ops see the values and the gradient of a parameter in the room of its unit
// (units.h). They are valid from the moment of their use until another unit with the same room is
// used.
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
  /// `tensor_group`: the ranks that share each layer with this one; null: this rank has whole
  /// layers. `expert_group`: the ranks that share out the routed experts; null: this rank has all
  /// of them. Both must outlive the store.
  explicit ParameterStore(const TensorGroup* tensor_group = nullptr,
                          const ExpertGroup* expert_group = nullptr)
      : tensor_group_(tensor_group), expert_group_(expert_group) {}
  const TensorGroup* tensor_group() const { return tensor_group_; }
  const ExpertGroup* expert_group() const { return expert_group_; }

  /// Declares a parameter; the reference stays valid for the life of the store. Names are unique.
  Parameter& add(ParameterSpec spec);

  /// Keeps only this rank's part of each parameter; without this call every parameter is whole.
  /// ErrorCode::config if a parameter does not divide into that many parts. Call before finalize().
  Result<> cut(const CutPlaces& places);
  /// Keeps only this rank's share of the optimizer's state or, with ShareRule::everything, of
  /// weights and gradients too. Call before finalize(), whose alignment must then be a multiple of
  /// rules.dense.count x 16. ShareRule::everything requires that the same ranks hold experts and
  /// all other parameters.
  void share(const ShareRules& rules);
  void shard(const ShareRule& rule) { share({.dense = rule}); }
  /// The place of this rank among those that hold the same parameters.
  struct Member {
    int index = 0, count = 1;
  };
  /// Keeps one f32 momentum, moment1(), instead of two moments; each member has its own. Call
  /// before finalize(). Not for a sharded store.
  void keep_own_momentum(Member member) { own_momentum_ = member; }
  const std::optional<Member>& own_momentum() const { return own_momentum_; }
  /// Sets the type of the moments, f32 or bf16. Call before finalize().
  void keep_moments_in(DType dtype) { moment_dtype_ = dtype; }
  DType moment_dtype() const { return moment_dtype_; }
  /// Multiplies linear layers in FP8 that would be multiplied in bf16, if the rows and columns of
  /// this rank's part are multiples of ops::kFp8Unit. Call before finalize(). Stored values do not
  /// change, except that `delayed` scaling keeps the largest values (amax) of x, weight and
  /// gradient of each linear layer, in FP8 or not, in the order of declaration.
  void multiply_in_fp8(bool delayed = false) {
    fp8_ = true;
    fp8_delayed_ = delayed;
  }
  bool multiplies_in_fp8() const { return fp8_; }
  /// f32 [3 layers, ops::kFp8History] and f32 [3 layers]. Undefined without delayed scaling, and
  /// before finalize() with an optimizer.
  Tensor& fp8_history() { return fp8_history_; }
  Tensor& fp8_current() { return fp8_current_; }
  bool sharded() const { return rules_.dense.count > 1 || rules_.experts.count > 1; }
  /// Whether weights are sharded too: ops read them from gathered units().
  bool gathers() const { return rules_.dense.count > 1 && rules_.dense.everything; }
  /// Whether no other replica has the f32 values of this rank's share of the parameter.
  bool keeps_share_of(const Parameter& parameter) const {
    return gathers() ? parameter.spec().use != Use::state : sharded() && parameter.trained();
  }
  /// The ranks that hold the same part of a parameter: those of the dense parameters, or those of
  /// the same experts.
  ReduceGroup held_by(const Parameter& parameter) const {
    return rules_.expert_ranks > 0 ? parameter.spec().cut.group : ReduceGroup::dense;
  }
  /// Lays out and allocates the buffers. The number of trained elements becomes a multiple of
  /// `alignment` elements (the data-parallel size x 16), so that this flat range can be sharded
  /// evenly. Gradients and moments, which exist only `with_optimizer`, are zero; weights are not
  /// initialized.
  void finalize(ExecutionContext& context, DType compute, std::int64_t alignment,
                bool with_optimizer);
  void initialize(std::uint64_t seed);

  const std::vector<std::unique_ptr<Parameter>>& parameters() const {
    return parameters_;
  }  // in the order of declaration
  /// Finds a parameter by its name, in constant time; nullptr if there is none.
  Parameter* find(std::string_view name);

  /// For tests: elements of the flat buffers, with padding.
  std::int64_t flat_elements() const { return flat_elements_; }
  /// For tests: those of trained parameters, which are at the front of these.
  std::int64_t trained_elements() const { return trained_elements_; }
  std::int64_t parameter_elements() const;  // without any padding and state
  DType compute_dtype() const { return compute_; }
  /// The buckets of a sharded store, in the order of the flat buffers; empty otherwise. If
  /// everything is sharded: the ranges of all units.
  const std::vector<FlatRange>& buckets() const { return buckets_; }
  /// This rank's share of a bucket.
  FlatRange own_share(std::size_t bucket) const {
    return share_of_bucket(buckets_[bucket], rule_of(section_at(buckets_[bucket].begin).group));
  }
  /// A range of trained elements that the same ranks hold. The sections together cover all of them.
  struct Section {
    FlatRange range;
    ReduceGroup group = ReduceGroup::dense;
  };
  const std::vector<Section>& sections() const { return sections_; }
  /// The section that contains this element.
  const Section& section_at(std::int64_t element) const;
  /// The whole values of a range of one bucket, in the type that ops read: bf16 copies of matrices,
  /// or f32. Not if everything is sharded.
  Tensor values_of(FlatRange range);
  /// Where the update of an own run writes the bf16 copies; undefined if it writes none.
  Tensor copies_of(const Parameter& parameter, const OwnRun& run);
  /// The gradients of an own run.
  Tensor gradients_of(const OwnRun& run) {
    return gradients_.slice(0, run.values, run.flat.elements());
  }
  /// Where a parameter begins in the f32 weights if every replica has it whole there; -1 if it is
  /// whole only in the compute copies. Not if everything is sharded.
  std::int64_t whole_master_place(const Parameter& parameter) const {
    const bool cut = parameter.trained() && parameter.offset() < cut_masters_;
    return cut ? -1 : whole_master_at(parameter.offset());
  }

  /// The units of gathering if everything is sharded; empty otherwise.
  const std::vector<Unit>& units() const { return units_; }
  std::size_t rooms() const { return rooms_.size(); }
  /// The values of a unit's range, in the type that ops read: this rank's share, and all of them in
  /// the unit's room.
  Tensor own_values(const UnitRange& range);
  Tensor whole_values(const Unit& unit, const UnitRange& range);
  /// The same for the gradients of a range that is trained.
  Tensor own_gradients(const UnitRange& range);
  Tensor whole_gradients(const Unit& unit, const UnitRange& range);
  /// This rank's share of such whole values or gradients.
  Tensor own_part_of(const Tensor& whole) const;
  /// Bytes of all rooms: for values, and for gradients.
  std::int64_t room_value_bytes() const;
  std::int64_t room_gradient_bytes() const;
  /// The context given to finalize(), which must outlive the store.
  ExecutionContext& context() { return *context_; }
  /// The flat buffers: f32 [elements], except the bf16 copy, which is undefined if compute is f32,
  /// and the moments, which are of moment_dtype(). In a sharded store Parameter::own_runs() gives
  /// the places of a parameter.
  Tensor& master() { return master_; }
  const Tensor& master() const { return master_; }
  Tensor& gradients() { return gradients_; }  // like the moments, only of trained parameters
  const Tensor& gradients() const { return gradients_; }
  Tensor& moment1() { return moment1_; }
  const Tensor& moment1() const { return moment1_; }
  Tensor& moment2() { return moment2_; }  // undefined with own_momentum()
  const Tensor& moment2() const { return moment2_; }
  Tensor& compute_copy() { return compute_copy_; }
  const Tensor& compute_copy() const { return compute_copy_; }

  void zero_gradients();
  /// From now on the gradients of product_gradient parameters are not zeroed between steps:
  /// zero_gradients() skips them, and the first product of the next step replaces them
  /// (Parameter::add_product()). A gradient that no product replaces is zeroed when it is needed.
  /// This saves zeroing the largest part of the buffer and reading it back. Requires that all
  /// passes of a step write to one buffer and are given to the device in the order in which they
  /// are called. Not if everything is sharded.
  void keep_old_gradients();
  /// Zeroes the gradients that no pass of this step has written. Call after the passes.
  void zero_unwritten_gradients();
  /// Correct the store's record of its gradients after a captured graph of the passes or of the
  /// update, whose work on the device the store does not see: all are written; all are zeroed,
  /// except those kept from an earlier step.
  void gradients_written() { mark_gradients(/*old=*/false); }
  void gradients_zeroed() { mark_gradients(/*old=*/true); }
  /// Forgets the pending uses of a pass that has ended with an exception and will not complete
  /// them.
  void forget_uses();
  /// Refreshes the bf16 copies, in a sharded store only those of the own share. Call after the
  /// master weights were written other than through ops::adamw.
  void refresh_compute_copy(ExecutionContext& context);
  /// Drops packed layouts. Call after any change of the weights.
  void weights_changed();
  /// Updates the FP8 casts of weights that are kept. Call before passes that are captured or
  /// launched as a graph.
  void refresh_fp8_weights();

  /// Sets a function that is called when a parameter's gradient is final; unset = gradients only
  /// accumulate.
  void set_on_final(std::function<void(Parameter&)> on_final) { on_final_ = std::move(on_final); }
  /// Sets a function that is called before values are used, while some may still be in flight: with
  /// the parameter, which is not of Use::state, or with null for all parameters.
  void set_on_use(std::function<void(const Parameter*)> on_use) { on_use_ = std::move(on_use); }
  /// Sets a function that is called before a gradient is written.
  void set_on_gradient(std::function<void(const Parameter&)> on_gradient) {
    on_gradient_ = std::move(on_gradient);
  }
  /// Waits until no values are in flight. Call before anything other than ops reads or writes the
  /// buffers.
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
  /// The buffers that the units of a room use alternately.
  struct Room {
    Tensor narrow, wide, gradients;  // bf16, f32, f32; undefined if no unit needs it
  };
  void keep_amaxes();
  void mark_gradients(bool old);
  void lay_out(std::int64_t alignment);
  void lay_out_units(std::int64_t alignment);
  void make_rooms(bool with_gradients);
  /// Sets the views of a parameter's values and gradient to those in the room of its unit.
  void place_in_room(Parameter& parameter);
  void find_own_runs();
  /// The place in the f32 weights of an element that every replica has there.
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
  std::vector<Parameter*> replaced_;    // gradients may be those of an earlier step
  std::vector<FlatRange> always_zero_;  // ranges of all other gradients
  std::vector<Section> sections_;
  std::vector<FlatRange> buckets_;
  std::vector<std::int64_t>
      own_begins_;  // by bucket: elements of the own shares of earlier buckets; the last: of all
  // Elements at the front whose f32 masters are sharded, and this rank's share of them.
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
