#include "trainer/tokenizer/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace sortie::trainer {

BpeMerges::BpeMerges(std::span<const Merge> merges)
    : slots_(std::bit_ceil(2 * merges.size() + 2)), shift_(64 - std::countr_zero(slots_.size())) {
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const std::uint64_t pair = key(merge.left, merge.right);
    std::size_t at = place(pair);
    while (slots_[at].pair != pair && slots_[at].pair != kEmpty)
      at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {pair, static_cast<std::uint32_t>(rank), merge.merged};
  }
}

void BpeMerges::apply(MergeScratch& scratch) const {
  // Most words are short. Scanning all ranks is then faster than keeping them ordered.
  constexpr std::size_t kShort = 40;
  if (scratch.ids.size() < 2) return;
  scratch.ranks.resize(scratch.ids.size());
  scratch.merged.resize(scratch.ids.size());
  for (std::size_t i = 0; i + 1 < scratch.ids.size(); ++i) {
    const Slot& slot = find(scratch.ids[i], scratch.ids[i + 1]);
    scratch.ranks[i] = slot.rank;
    scratch.merged[i] = slot.merged;
  }
  scratch.ranks.back() = kNoRank;
  if (scratch.ids.size() <= kShort)
    apply_short(scratch);
  else
    apply_long(scratch);
}

void BpeMerges::apply_short(MergeScratch& scratch) const {
  std::int32_t* const ids = scratch.ids.data();
  std::uint32_t* const ranks = scratch.ranks.data();
  std::int32_t* const merged = scratch.merged.data();
  std::size_t size = scratch.ids.size();
  const auto look = [&](std::size_t i) {
    const Slot& slot = find(ids[i], ids[i + 1]);
    ranks[i] = slot.rank;
    merged[i] = slot.merged;
  };
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < size; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNoRank) break;
    ids[best] = merged[best];
    --size;
    for (std::size_t i = best + 1; i < size; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    if (best + 1 < size)
      look(best);
    else
      ranks[best] = kNoRank;
    if (best > 0) look(best - 1);
  }
  scratch.ids.resize(size);
}

void BpeMerges::apply_long(MergeScratch& scratch) const {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  auto& [ids, ranks, merged, previous, next, heap] = scratch;
  const std::size_t size = ids.size();
  previous.resize(size);
  next.resize(size);
  heap.clear();
  // An entry is rank << 32 | position. It is out of date if the position now has another rank.
  for (std::size_t i = 0; i < size; ++i) {
    previous[i] = i == 0 ? kNone : static_cast<std::uint32_t>(i - 1);
    next[i] = i + 1 == size ? kNone : static_cast<std::uint32_t>(i + 1);
    if (ranks[i] != kNoRank) heap.push_back(std::uint64_t{ranks[i]} << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto look = [&](std::uint32_t at) {
    ranks[at] = kNoRank;
    if (next[at] == kNone) return;
    const Slot& slot = find(ids[at], ids[next[at]]);
    if (slot.rank == kNoRank) return;
    ranks[at] = slot.rank;
    merged[at] = slot.merged;
    heap.push_back(std::uint64_t{slot.rank} << 32 | at);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const std::uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto at = static_cast<std::uint32_t>(top);
    if (ranks[at] != static_cast<std::uint32_t>(top >> 32)) continue;
    const std::uint32_t gone = next[at];
    ids[at] = merged[at];
    ranks[gone] = kNoRank;
    next[at] = next[gone];
    if (next[at] != kNone) previous[next[at]] = at;
    look(at);
    if (previous[at] != kNone) look(previous[at]);
  }
  std::size_t kept = 0;
  for (std::uint32_t at = 0; at != kNone; at = next[at]) ids[kept++] = ids[at];
  ids.resize(kept);
}

}  // namespace sortie::trainer
