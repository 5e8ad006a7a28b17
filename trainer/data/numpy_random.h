// NumpyRandom: the shuffle of numpy's RandomState, which other training suites use for their
// orders.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace sortie::trainer {

/// Generates the same sequence as numpy.random.RandomState(seed).
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  /// Shuffles in place, as RandomState.shuffle does. Fewer than 2^32 values.
  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[below_or_at(i)]);
  }

 private:
  /// Uniform over [0, max]: takes the low bits of a draw and draws again while they exceed `max`.
  std::size_t below_or_at(std::size_t max) {
    const std::uint64_t mask = std::bit_ceil(static_cast<std::uint64_t>(max) + 1) - 1;
    for (;;)
      if (const std::uint64_t value = engine_() & mask; value <= max)
        return static_cast<std::size_t>(value);
  }

  std::mt19937 engine_;
};

}  // namespace sortie::trainer
