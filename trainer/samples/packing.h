// Packing: decides which conversations share a sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sortie::trainer {

/// Rows of items, which are identified by number.
struct PackedRows {
  std::vector<std::uint32_t> items;
  std::vector<std::size_t> begins{0};  // beginning of each row in `items`, then the end

  std::size_t size() const { return begins.size() - 1; }
  std::span<const std::uint32_t> operator[](std::size_t row) const {
    return std::span(items).subspan(begins[row], begins[row + 1] - begins[row]);
  }
};

/// Packs the items [0, lengths.size()), each of at most `capacity`, into rows of `capacity`. Among
/// items of equal length, the one that is earlier in `order` comes first. Best-fit decreasing: the
/// longest items first, each into the fullest row that has room for it (at most 11/9 of the minimum
/// number of rows, plus 4/9; D. S. Johnson, Near-optimal bin packing algorithms, 1973). O(n log n).
PackedRows pack_tightly(std::span<const std::int64_t> lengths, std::span<const std::uint32_t> order,
                        std::int64_t capacity);

/// Packs the items in their order: a row ends where the next item does not fit.
PackedRows pack_in_order(std::span<const std::int64_t> lengths, std::int64_t capacity);

}  // namespace sortie::trainer
