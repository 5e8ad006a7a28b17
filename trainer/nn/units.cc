#include "trainer/nn/units.h"

#include <algorithm>

namespace sortie::trainer {
namespace {

constexpr std::string_view kLayers = "layers.";
constexpr std::size_t kTurns = 2;  // rooms that large units use alternately

std::int64_t next_multiple(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Finds the unit of each member and assigns rooms to the units.
void find_units(const std::vector<UnitMember>& members, UnitLayout& layout) {
  std::vector<bool> with_matrix;
  for (const UnitMember& member : members) {
    const std::string name = unit_name(member.name);
    const auto found = std::ranges::find(layout.units, name, &Unit::name);
    const auto index = static_cast<std::size_t>(found - layout.units.begin());
    if (found == layout.units.end()) {
      layout.units.push_back({.name = name});
      with_matrix.push_back(false);
    }
    layout.unit_of.push_back(index);
    with_matrix[index] = with_matrix[index] || member.matrix;
  }
  std::size_t large = 0, rooms = kTurns;
  for (std::size_t i = 0; i < layout.units.size(); ++i)
    layout.units[i].room = with_matrix[i] ? large++ % kTurns : rooms++;
  layout.rooms.resize(rooms);
}

}  // namespace

std::string unit_name(std::string_view parameter) {
  const std::size_t from = parameter.starts_with(kLayers) ? kLayers.size() : 0;
  return std::string(parameter.substr(0, parameter.find('.', from)));
}

UnitLayout lay_out_units(const std::vector<UnitMember>& members, std::int64_t alignment) {
  UnitLayout layout;
  layout.offsets.resize(members.size());
  find_units(members, layout);
  std::vector<RoomSize> filled(layout.units.size());
  std::int64_t end = 0;
  const auto add_range = [&](std::size_t unit, bool trained, bool narrow) {
    UnitRange range{.flat = {end, end}, .narrow = narrow, .trained = trained};
    for (std::size_t i = members.size(); i-- > 0;) {
      const UnitMember& member = members[i];
      if (layout.unit_of[i] != unit || member.trained != trained || member.narrow != narrow)
        continue;
      layout.offsets[i] = range.flat.end;
      range.flat.end += next_multiple(member.elements, kLineElements);
    }
    if (range.flat.elements() == 0) return;
    range.flat.end = end = range.flat.begin + next_multiple(range.flat.elements(), alignment);
    RoomSize& room = filled[unit];
    std::int64_t& values = narrow ? room.narrow : room.wide;
    range.place = values;
    range.gradient = room.gradients;
    values += range.flat.elements();
    if (trained) room.gradients += range.flat.elements();
    layout.units[unit].ranges.push_back(range);
    layout.buckets.push_back(range.flat);
  };
  for (const bool trained : {true, false}) {
    for (std::size_t unit = layout.units.size(); unit-- > 0;)
      for (const bool narrow : {true, false}) add_range(unit, trained, narrow);
    if (trained) layout.trained = end;
  }
  layout.all = end;
  for (std::size_t i = 0; i < layout.units.size(); ++i) {
    RoomSize& room = layout.rooms[layout.units[i].room];
    room.narrow = std::max(room.narrow, filled[i].narrow);
    room.wide = std::max(room.wide, filled[i].wide);
    room.gradients = std::max(room.gradients, filled[i].gradients);
  }
  return layout;
}

}  // namespace sortie::trainer
