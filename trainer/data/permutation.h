// Permutation: a keyed shuffle of [0, size) that is computed, not stored.
#pragma once

#include <cstdint>

namespace sortie::trainer {

/// A Feistel network over the smallest power of two that is not less than `size`, applied again
/// until the result is below `size` (cycle walking). Any element costs O(1) time and no memory.
/// Equal (key, size) give the same order on every machine and in every version; tests pin it,
/// because a resumed run depends on it.
class Permutation {
 public:
  Permutation() = default;
  Permutation(std::uint64_t key, std::uint64_t size);

  /// The image of `index`, which must be below size().
  std::uint64_t operator()(std::uint64_t index) const;
  std::uint64_t size() const { return size_; }

 private:
  static constexpr int kRounds = 8;

  std::uint64_t key_ = 0;
  std::uint64_t size_ = 0;
  int low_bits_ = 0;
  int high_bits_ = 0;
};

}  // namespace sortie::trainer
