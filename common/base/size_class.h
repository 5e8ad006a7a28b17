// Block sizes of the trainer's caching allocator and of its pinned host memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace sortie {

inline constexpr std::size_t kBlockAlignment = 64;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Rounds up to a multiple of an eighth of the power of two at or below `bytes`. The unit is at
/// least kBlockAlignment, and from 2 * kHugePage on at least kHugePage. So few sizes exist, and
/// less than one unit is wasted.
inline std::size_t size_class(std::size_t bytes) {
  bytes = std::max(bytes, kBlockAlignment);
  const std::size_t step = bytes >= 2 * kHugePage
                               ? std::max(std::bit_floor(bytes) / 8, kHugePage)
                               : std::max(std::bit_floor(bytes) / 8, kBlockAlignment);
  return (bytes + step - 1) / step * step;
}

}  // namespace sortie
