// Merge rules of a BPE tokenizer, and their application to one word.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace sortie::trainer {

/// Replaces two adjacent symbols by one. Rules with a lower rank are applied first.
struct Merge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t merged = 0;
};

/// Reusable buffers of apply(), one per thread.
struct MergeScratch {
  std::vector<std::int32_t> ids{};
  std::vector<std::uint32_t> ranks{};
  std::vector<std::int32_t> merged{};
  std::vector<std::uint32_t> previous{};
  std::vector<std::uint32_t> next{};
  std::vector<std::uint64_t> heap{};
};

class BpeMerges {
 public:
  BpeMerges() = default;
  /// `merges` are in the order of their ranks. If a pair occurs repeatedly, its last rule counts.
  explicit BpeMerges(std::span<const Merge> merges);

  /// Merges adjacent ids in scratch.ids until no rule applies. Always merges the pair with the
  /// lowest rank; among equal pairs, the leftmost.
  void apply(MergeScratch& scratch) const;

 private:
  static constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint64_t kEmpty = std::numeric_limits<std::uint64_t>::max();
  struct Slot {
    std::uint64_t pair = kEmpty;
    std::uint32_t rank = kNoRank;
    std::int32_t merged = -1;
  };

  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t place(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15u) >> shift_);
  }
  const Slot& find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t pair = key(left, right);
    std::size_t at = place(pair);
    while (slots_[at].pair != pair && slots_[at].pair != kEmpty)
      at = (at + 1) & (slots_.size() - 1);
    return slots_[at];  // an empty slot has no rank
  }
  void apply_short(MergeScratch& scratch) const;
  void apply_long(MergeScratch& scratch) const;

  std::vector<Slot> slots_ = std::vector<Slot>(2);
  int shift_ = 63;
};

}  // namespace sortie::trainer
