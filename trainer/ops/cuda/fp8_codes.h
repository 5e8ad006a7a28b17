// FP8 codes and scales, for kernels. Included by .cu files.
#pragma once

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/fp8_format.h"

namespace sortie::trainer::ops::cuda {

/// Properties of a format, without its codes for infinities and NaN. Source: Micikevicius et al.
/// 2022, table 1.
template <Fp8Format F>
struct Fp8Facts;
template <>
struct Fp8Facts<Fp8Format::e4m3> {
  static constexpr int mantissa = 3, least_exponent = -6, largest_exponent = 8;
  static constexpr float largest = 448.0f;
};
template <>
struct Fp8Facts<Fp8Format::e5m2> {
  static constexpr int mantissa = 2, least_exponent = -14, largest_exponent = 15;
  static constexpr float largest = 57344.0f;
};
inline constexpr unsigned kFp8NaN = 0x7f;
inline constexpr float kLargestFinite = 3.40282347e38f;

/// 2^exponent of a normal number.
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23);
}

/// The exponent of the largest power of two whose product with `largest` does not exceed the
/// format's largest value, which is 1.75 times a power of two for both formats. 0 if `largest` is
/// 0. Limited so that f32 represents the power and its inverse.
template <Fp8Format F>
__device__ __forceinline__ int scale_exponent(float largest) {
  const unsigned bits = __float_as_uint(largest);
  if (bits == 0) return 0;
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const int above = (bits & 0x7fffffu) > 0x600000u ? 1 : 0;
  const int wanted = Fp8Facts<F>::largest_exponent - exponent - above;
  return wanted > 126 ? 126 : wanted;
}

/// Code of a scaled value: rounded to nearest, ties to even, at most the largest; NaN if the value
/// is not finite.
template <Fp8Format F>
__device__ __forceinline__ unsigned fp8_code(float value) {
  using Facts = Fp8Facts<F>;
  const unsigned bits = __float_as_uint(value);
  float size = fabsf(value);
  if (!(size <= kLargestFinite)) return kFp8NaN;
  if (size > Facts::largest) size = Facts::largest;
  int exponent = static_cast<int>(__float_as_uint(size) >> 23) - 127;
  if (exponent < Facts::least_exponent) exponent = Facts::least_exponent;
  // Exact, in units of the last place; rounding up to the next power of two carries over.
  const float units = rintf(size * power_of_two(Facts::mantissa - exponent));
  const unsigned code =
      (static_cast<unsigned>(exponent - Facts::least_exponent) << Facts::mantissa) +
      static_cast<unsigned>(units);
  return code | (bits >> 24 & 0x80u);
}

/// Codes of two values, the first one's in the low byte.
template <Fp8Format F>
__device__ __forceinline__ std::uint16_t fp8_codes(float first, float second) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 890
  // The instruction converts infinities to the largest value.
  if (!(fabsf(first) <= kLargestFinite)) first = __uint_as_float(0x7fffffffu);
  if (!(fabsf(second) <= kLargestFinite)) second = __uint_as_float(0x7fffffffu);
  std::uint16_t codes;
  if constexpr (F == Fp8Format::e4m3)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#endif
#endif
  return static_cast<std::uint16_t>(fp8_code<F>(first) | fp8_code<F>(second) << 8);
}

}  // namespace sortie::trainer::ops::cuda
