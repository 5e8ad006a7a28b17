// The sizes in which the trainer's caching allocator hands out memory, and in which a plan counts
// it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace sortie {

inline constexpr std::size_t kBlockAlignment = 64;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Rounds up in steps of an eighth of a power of two, so that few sizes exist and at most an eighth
/// is wasted.
inline std::size_t size_class(std::size_t bytes) {
  bytes = std::max(bytes, kBlockAlignment);
  const std::size_t step = bytes >= 2 * kHugePage
                               ? std::max(std::bit_floor(bytes) / 8, kHugePage)
                               : std::max(std::bit_floor(bytes) / 8, kBlockAlignment);
  return (bytes + step - 1) / step * step;
}

}  // namespace sortie
