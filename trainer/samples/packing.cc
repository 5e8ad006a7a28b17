#include "trainer/samples/packing.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "common/base/check.h"

namespace sortie::trainer {

PackedRows pack_tightly(std::span<const std::int64_t> lengths, std::span<const std::uint32_t> order,
                        std::int64_t capacity) {
  std::vector<std::uint32_t> decreasing(order.begin(), order.end());
  std::ranges::stable_sort(decreasing, std::greater(),
                           [&](std::uint32_t item) { return lengths[item]; });
  constexpr std::size_t kNone = SIZE_MAX;
  std::multimap<std::int64_t, std::size_t> room;  // room left in rows; of equal ones the oldest
  std::vector<std::size_t> first, last;           // of each row, indices into `decreasing`
  std::vector<std::size_t> next(decreasing.size(), kNone);  // next item of the same row
  for (std::size_t at = 0; at < decreasing.size(); ++at) {
    const std::int64_t length = lengths[decreasing[at]];
    SORTIE_CHECK(length <= capacity, "an item of {} in rows of {}", length, capacity);
    if (const auto found = room.lower_bound(length); found != room.end()) {
      auto row = room.extract(found);
      next[std::exchange(last[row.mapped()], at)] = at;
      row.key() -= length;
      if (row.key() > 0) room.insert(std::move(row));
      continue;
    }
    if (length < capacity) room.emplace(capacity - length, first.size());
    first.push_back(at);
    last.push_back(at);
  }
  PackedRows rows;
  for (const std::size_t begin : first) {
    for (std::size_t at = begin; at != kNone; at = next[at]) rows.items.push_back(decreasing[at]);
    rows.begins.push_back(rows.items.size());
  }
  return rows;
}

PackedRows pack_in_order(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  PackedRows rows;
  std::int64_t left = capacity;
  for (std::size_t item = 0; item < lengths.size(); ++item) {
    SORTIE_CHECK(lengths[item] <= capacity, "an item of {} in rows of {}", lengths[item], capacity);
    if (lengths[item] > left) {
      rows.begins.push_back(item);
      left = capacity;
    }
    rows.items.push_back(static_cast<std::uint32_t>(item));
    left -= lengths[item];
  }
  if (!lengths.empty()) rows.begins.push_back(lengths.size());
  return rows;
}

}  // namespace sortie::trainer
