// NumpyRandom: the shuffle of numpy's RandomState, whose orders other suites' runs have.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace sortie::trainer {

/// The sequence of numpy.random.RandomState(seed).
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  /// In place, as RandomState.shuffle; fewer than 2^32 values.
  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[below_or_at(i)]);
  }

 private:
  /// Even over [0, max]: the low bits of a draw, drawn again while they are too much.
  std::size_t below_or_at(std::size_t max) {
    const std::uint64_t mask = std::bit_ceil(static_cast<std::uint64_t>(max) + 1) - 1;
    for (;;)
      if (const std::uint64_t value = engine_() & mask; value <= max)
        return static_cast<std::size_t>(value);
  }

  std::mt19937 engine_;
};

}  // namespace sortie::trainer
