#include "trainer/ops/cuda/optimizer_rounded.h"

#include "trainer/ops/cuda/adamw_element.h"
#include "trainer/ops/cuda/dropout_run.h"
#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// The random bits of consecutive elements of the range. random_bits() of the key and the upper
/// half of an element's number is the key for the lower half.
class RoundingBits {
 public:
  __device__ __forceinline__ RoundingBits(const RoundingView& rounding, std::int64_t i)
      : key_(key_of(rounding)), columns_(rounding.columns), gap_(rounding.stride - rounding.columns) {
    const std::int64_t at = rounding.begin + i;
    // Whole rows are consecutive: only a part of the columns has gaps and needs the division.
    const std::int64_t row = gap_ == 0 ? 0 : quotient(at, columns_);
    number_ = static_cast<std::uint64_t>(rounding.first + at + row * gap_);
    left_ = gap_ == 0 ? 0 : columns_ - (at - row * columns_);
    enter(number_ >> 32);
  }

  __device__ __forceinline__ std::uint32_t next() {
    if (number_ >> 32 != high_) enter(number_ >> 32);
    const std::uint32_t bits =
        mix_bits(mix_bits(static_cast<std::uint32_t>(number_) + key0_) ^ key1_);
    ++number_;
    if (gap_ != 0 && --left_ == 0) {
      number_ += static_cast<std::uint64_t>(gap_);
      left_ = columns_;
    }
    return bits;
  }

 private:
  /// `key`, or random_bits() of it and the step if there is one.
  static __device__ __forceinline__ std::uint64_t key_of(const RoundingView& rounding) {
    if (rounding.step == nullptr) return rounding.key;
    return mix_state(rounding.key +
                     0x9e3779b97f4a7c15ull * (static_cast<std::uint64_t>(*rounding.step) + 1));
  }
  /// A division of 32 bits is several times as fast.
  static __device__ __forceinline__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
    if ((a | b) >> 32 == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return a / b;
  }
  __device__ __forceinline__ void enter(std::uint64_t high) {
    const std::uint64_t key = mix_state(key_ + 0x9e3779b97f4a7c15ull * (high + 1));
    high_ = high;
    key0_ = static_cast<std::uint32_t>(key);
    key1_ = static_cast<std::uint32_t>(key >> 32);
  }

  std::uint64_t key_, number_, high_;
  std::int64_t columns_, gap_, left_;
  std::uint32_t key0_, key1_;
};

/// Rounds up or down at random, by 16 uniform random bits: the mean is the value.
__device__ __forceinline__ bf16 rounded_at_random(float value, std::uint32_t noise) {
  const std::uint32_t wide = __float_as_uint(value), size = wide & 0x7fffffffu;
  bf16 result;
  result.bits = size < 0x7f800000u
                    ? static_cast<std::uint16_t>((wide + noise) >> 16)
                    : static_cast<std::uint16_t>((wide >> 16) | (size > 0x7f800000u ? 0x40u : 0u));
  return result;
}

/// 12 bytes are read and 8 written per element, 10 with the copy in bf16.
struct AdamWRounded {
  AdamWNumbers a;
  RoundingView rounding;
  AdamWRoundedRange range;

  template <int N>
  __device__ void at(std::int64_t, std::int64_t col) const {
    if (a.gate[0] == 0.0f) return;
    Floats<N> w = load<N>(range.w + col), m = load<N>(range.m + col), v = load<N>(range.v + col);
    const Floats<N> grad = load<N>(range.grad + col);
    Pack<bf16, N> first, second;
    RoundingBits noise(rounding, col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      adamw_element(a, grad.values[i], w.values[i], m.values[i], v.values[i]);
      const std::uint32_t bits = noise.next();
      first.values[i] = rounded_at_random(m.values[i], bits & 0xffffu);
      second.values[i] = rounded_at_random(v.values[i], bits >> 16);
    }
    store<N>(range.w + col, w);
    write_pack(range.m + col, first);
    write_pack(range.v + col, second);
    if (range.compute != nullptr) store<N>(range.compute + col, w);
  }
};

}  // namespace

void adamw_rounded_range(cudaStream_t stream, const AdamWNumbers& numbers,
                         const RoundingView& rounding, const AdamWRoundedRange& range) {
  for_each_of_range(stream, AdamWRounded{numbers, rounding, range});
}

}  // namespace sortie::trainer::ops::cuda
