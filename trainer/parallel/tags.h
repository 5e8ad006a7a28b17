// Tags keep the messages of a run apart: (group, operation, part of the operation).
#pragma once

#include <cstdint>

#include "common/base/check.h"

namespace sortie::trainer {

/// Operations of a group count up; the tag has their last bits, many more than can be in flight.
inline constexpr int kSequenceBits = 14, kPartBits = 3, kGroupBits = 11;
inline constexpr int kMaxTag = (1 << (kSequenceBits + kPartBits + kGroupBits)) - 1;

enum class Part : int {
  data,     // of an ordered collective
  results,  // of the same: what has been reduced, or is passed on
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
