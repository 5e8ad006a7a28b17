// Which elements dropout keeps: the CPU's function of (key, sample, element), see ops/dropout.h.
#pragma once

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// SplitMix64 finaliser (Steele, Lea & Flood 2014).
__device__ __forceinline__ std::uint64_t mix_state(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// A bijection of 32 bits in which every bit of x changes every bit of the result (Wellons 2018).
__device__ __forceinline__ std::uint32_t mix_bits(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

/// The generator at elements of sample `b` of the batch. Its state changes every 2^32 elements, so
/// a thread that processes neighbouring elements computes it once.
class DropoutRun {
 public:
  /// `reads` is known at compile time; if false, dropout.first is nullptr.
  __device__ __forceinline__ DropoutRun(const DropoutView& dropout, std::int64_t b,
                                        bool reads = true)
      : sample_(mix_state(dropout.key +
                          0x9e3779b97f4a7c15ull *
                              static_cast<std::uint64_t>(number_of(dropout, b, reads) + 1))),
        first_(static_cast<std::uint64_t>(dropout.first_element)),
        threshold_(dropout.threshold),
        factor_(dropout.factor) {
    enter(0);
  }
  /// Returns x / (1 - p), or 0 if the element is dropped (also for NaN). `element` is counted
  /// within the local part of the sample.
  __device__ __forceinline__ float operator()(std::int64_t element, float x) {
    const std::uint64_t position = first_ + static_cast<std::uint64_t>(element);
    if (position >> 32 != high_) enter(position >> 32);
    const std::uint32_t bits =
        mix_bits(mix_bits(static_cast<std::uint32_t>(position) + key0_) ^ key1_);
    return bits >= threshold_ ? x * factor_ : 0.0f;
  }

 private:
  /// Number of the sample in the run.
  static __device__ __forceinline__ std::int64_t number_of(const DropoutView& dropout,
                                                           std::int64_t b, bool reads) {
    return dropout.first_sample + b + (reads && dropout.first != nullptr ? *dropout.first : 0);
  }
  __device__ __forceinline__ void enter(std::uint64_t high) {
    const std::uint64_t key = mix_state(sample_ + 0x9e3779b97f4a7c15ull * high);
    high_ = high;
    key0_ = static_cast<std::uint32_t>(key);
    key1_ = static_cast<std::uint32_t>(key >> 32);
  }

  std::uint64_t sample_, first_, high_;
  std::uint32_t key0_, key1_, threshold_;
  float factor_;
};

}  // namespace sortie::trainer::ops::cuda
