#include "trainer/data/permutation.h"

#include <bit>

#include "common/base/check.h"
#include "trainer/random/random.h"

namespace sortie::trainer {

Permutation::Permutation(std::uint64_t key, std::uint64_t size) : key_(key), size_(size) {
  const int bits = size > 1 ? static_cast<int>(std::bit_width(size - 1)) : 0;
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  SORTIE_CHECK(index < size_, "{} of {}", index, size_);
  if (size_ == 1) return 0;
  std::uint64_t value = index;
  do {
    // Alternately xors one half with a hash of the other, which is invertible for any hash.
    std::uint64_t low = value & ((std::uint64_t{1} << low_bits_) - 1);
    std::uint64_t high = value >> low_bits_;
    for (std::uint64_t round = 0; round < kRounds; round += 2) {
      high ^= random_bits(key_ + random_bits(low + (round << 32))) >> (64 - high_bits_);
      if (low_bits_ > 0)
        low ^= random_bits(key_ + random_bits(high + ((round + 1) << 32))) >> (64 - low_bits_);
    }
    value = (high << low_bits_) | low;
  } while (value >= size_);
  return value;
}

}  // namespace sortie::trainer
