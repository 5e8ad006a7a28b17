// Units of gathering when everything is sharded (ZeRO stage 3, Rajbhandari et al. 2020). A unit is
// a layer, or another part of the model such as the embedding or the head: the replicas, which each
// keep a share of it, gather it as a whole for as long as they compute with it. In the flat buffers
// a unit has up to four ranges, by type and by whether they are trained; each range is cut into
// equal shares. The whole values of a unit exist only in its room, a buffer that it may share with
// other units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/nn/shares.h"

namespace sortie::trainer {

/// A range that is communicated in one collective. Offsets are elements.
struct UnitRange {
  FlatRange flat;
  bool narrow = false;        // gathered as bf16, else as f32
  bool trained = false;       // has a gradient
  std::int64_t place = 0;     // offset in the room, among the values of its type
  std::int64_t gradient = 0;  // offset in the room, among the gradients
};

struct Unit {
  std::string name;
  std::size_t room = 0;
  std::vector<UnitRange> ranges = {};
};

/// A parameter as the layout sees it.
struct UnitMember {
  std::string_view name;
  std::int64_t elements = 0;
  bool matrix = false;   // a unit without matrices is small
  bool narrow = false;   // ops read it as bf16
  bool trained = false;  // trained members come first in the flat buffers
};

/// Elements of a room, which fits the largest of its units.
struct RoomSize {
  std::int64_t narrow = 0, wide = 0, gradients = 0;
};

struct UnitLayout {
  std::vector<Unit> units;            // in the order of their first members
  std::vector<std::size_t> unit_of;   // by member
  std::vector<std::int64_t> offsets;  // by member, in the flat buffers
  std::vector<FlatRange> buckets;     // all ranges, contiguous from 0 on
  std::vector<RoomSize> rooms;
  std::int64_t trained = 0, all = 0;  // elements of the ranges
};

/// Returns "layers.3" for a parameter of a layer, otherwise the first word of its name
/// ("embedding", "head").
std::string unit_name(std::string_view parameter);

/// Lays out the units. Members are in the order of their declaration, which is that of their use;
/// in the flat buffers units and members have the reverse order. The sizes of ranges are multiples
/// of `alignment` (the number of ranks x 16). Units with matrices alternate between two rooms, so
/// that the next one can be gathered while one is computed with. A unit without matrices (a norm)
/// is small and has its own room.
UnitLayout lay_out_units(const std::vector<UnitMember>& members, std::int64_t alignment);

}  // namespace sortie::trainer
