// Units of gathering: what replicas that each keep a share of everything bring together as one, for
// as long as it is computed with (ZeRO stage 3, Rajbhandari et al. 2020): a layer, the embedding,
// the head. A unit lies in the flat buffers as up to four ranges, by type and by whether it is
// trained; each is cut into equal shares. Its whole values exist in a room, which it shares with
// other units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/nn/shares.h"

namespace sortie::trainer {

/// What is communicated as one. Offsets are elements.
struct UnitRange {
  FlatRange flat;
  bool narrow = false;        // gathered as bf16, else as f32
  bool trained = false;       // and has a gradient
  std::int64_t place = 0;     // in the room, among the values of its type
  std::int64_t gradient = 0;  // in the room, among the gradients
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
  bool matrix = false;   // a unit without any is small
  bool narrow = false;   // ops read it as bf16
  bool trained = false;  // what is, comes first in the flat buffers
};

/// Elements of a room: those of the largest of its units.
struct RoomSize {
  std::int64_t narrow = 0, wide = 0, gradients = 0;
};

struct UnitLayout {
  std::vector<Unit> units;            // in the order of their first members
  std::vector<std::size_t> unit_of;   // by member
  std::vector<std::int64_t> offsets;  // by member, in the flat buffers
  std::vector<FlatRange> buckets;     // all ranges, one behind the other from 0 on
  std::vector<RoomSize> rooms;
  std::int64_t trained = 0, all = 0;  // elements of the ranges
};

/// "layers.3" of what belongs to a layer, else the first word of the name ("embedding", "head").
std::string unit_name(std::string_view parameter);

/// Members are in the order of their declaration, which is that of their use; in the flat buffers
/// units and members lie the other way round. Ranges are multiples of `alignment` (the ranks x 16).
/// Units that have matrices take two rooms in turns, so that the next one can come while one is
/// computed with; what has none (a norm) is small, and has a room of its own.
UnitLayout lay_out_units(const std::vector<UnitMember>& members, std::int64_t alignment);

}  // namespace sortie::trainer
