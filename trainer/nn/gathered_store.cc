// ParameterStore: the part for stores where everything is sharded (gathers()).
#include "trainer/nn/parameter_store.h"

namespace sortie::trainer {
namespace {

std::int64_t bytes_of(const Tensor& tensor) {
  if (!tensor.defined()) return 0;
  return tensor.elements() * static_cast<std::int64_t>(dtype_bytes(tensor.dtype()));
}

}  // namespace

void ParameterStore::lay_out_units(std::int64_t alignment) {
  std::vector<UnitMember> members;
  std::vector<Parameter*> of_members;
  for (const auto& parameter : parameters_) {
    const Use use = parameter->spec().use;
    if (use == Use::state) continue;
    members.push_back({.name = parameter->name(),
                       .elements = parameter->elements(),
                       .matrix = use != Use::vector,
                       .narrow = is_narrow(*parameter),
                       .trained = parameter->trained()});
    of_members.push_back(parameter.get());
  }
  UnitLayout layout = trainer::lay_out_units(members, alignment);
  for (std::size_t i = 0; i < of_members.size(); ++i) {
    of_members[i]->offset_ = layout.offsets[i];
    of_members[i]->unit_ = layout.unit_of[i];
  }
  units_ = std::move(layout.units);
  buckets_ = std::move(layout.buckets);
  room_sizes_ = std::move(layout.rooms);
  trained_elements_ = layout.trained;
  cut_masters_ = layout.all;
  own_masters_ = layout.all / rules_.dense.count;
  sections_ = {{{0, cut_masters_}, ReduceGroup::dense}};
  own_begins_ = {0};
  for (const FlatRange& bucket : buckets_)
    own_begins_.push_back(own_begins_.back() + bucket.elements() / rules_.dense.count);
}

void ParameterStore::make_rooms(bool with_gradients) {
  const auto memory = [this](DType dtype, std::int64_t elements) {
    return elements > 0 ? context_->zeros(dtype, {elements}) : Tensor();
  };
  for (const RoomSize& size : room_sizes_)
    rooms_.push_back({memory(DType::bf16, size.narrow), memory(DType::f32, size.wide),
                      memory(DType::f32, with_gradients ? size.gradients : 0)});
}

void ParameterStore::place_in_room(Parameter& parameter) {
  const Unit& unit = units_[parameter.unit_];
  const std::int64_t elements = parameter.elements();
  for (const UnitRange& range : unit.ranges) {
    const std::int64_t at = parameter.offset_ - range.flat.begin;
    if (at < 0 || parameter.offset_ >= range.flat.end) continue;
    parameter.weight_ = whole_values(unit, range).slice(0, at, elements).view(parameter.shape_);
    if (range.trained && rooms_[unit.room].gradients.defined())
      parameter.grad_ = whole_gradients(unit, range).slice(0, at, elements).view(parameter.shape_);
    return;
  }
  SORTIE_CHECK(false, "{} is in no range of {}", parameter.name(), unit.name);
}

Tensor ParameterStore::own_values(const UnitRange& range) {
  const Tensor& from = range.narrow ? compute_copy_ : master_;
  return from.slice(0, range.flat.begin / rules_.dense.count,
                    range.flat.elements() / rules_.dense.count);
}

Tensor ParameterStore::whole_values(const Unit& unit, const UnitRange& range) {
  const Room& room = rooms_[unit.room];
  return (range.narrow ? room.narrow : room.wide).slice(0, range.place, range.flat.elements());
}

Tensor ParameterStore::own_gradients(const UnitRange& range) {
  return gradients_.slice(0, range.flat.begin / rules_.dense.count,
                          range.flat.elements() / rules_.dense.count);
}

Tensor ParameterStore::whole_gradients(const Unit& unit, const UnitRange& range) {
  return rooms_[unit.room].gradients.slice(0, range.gradient, range.flat.elements());
}

Tensor ParameterStore::own_part_of(const Tensor& whole) const {
  const std::int64_t each = whole.elements() / rules_.dense.count;
  return whole.slice(0, each * rules_.dense.index, each);
}

std::int64_t ParameterStore::room_value_bytes() const {
  std::int64_t sum = 0;
  for (const Room& room : rooms_) sum += bytes_of(room.narrow) + bytes_of(room.wide);
  return sum;
}

std::int64_t ParameterStore::room_gradient_bytes() const {
  std::int64_t sum = 0;
  for (const Room& room : rooms_) sum += bytes_of(room.gradients);
  return sum;
}

}  // namespace sortie::trainer
