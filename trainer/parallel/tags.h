// Message tags, which distinguish the messages of a run: (group, operation, part of the operation).
#pragma once

#include <cstdint>

#include "common/base/check.h"

namespace sortie::trainer {

/// A tag has the low bits of an operation's number in its group. They distinguish many more
/// operations than can be in flight.
inline constexpr int kSequenceBits = 14, kPartBits = 3, kGroupBits = 11;
inline constexpr int kMaxTag = (1 << (kSequenceBits + kPartBits + kGroupBits)) - 1;

enum class Part : int {
  data,     // of an ordered collective
  results,  // of an ordered collective: reduced or relayed data
  pair,     // send and receive
  agree,    // the debug mode
  meet,
};

inline int tag_of(int group, Part part, std::uint64_t sequence = 0) {
  SORTIE_CHECK(group < (1 << kGroupBits), "more than {} groups", 1 << kGroupBits);
  const int number = static_cast<int>(sequence & ((1u << kSequenceBits) - 1));
  return (((group << kSequenceBits) | number) << kPartBits) | static_cast<int>(part);
}

}  // namespace sortie::trainer
