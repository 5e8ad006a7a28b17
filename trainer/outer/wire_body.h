// The kernels of wire_kernels.h in the namespace SORTIE_ISA_NAMESPACE, compiled once per
// instruction set without contraction: each operation is exact or rounded once, so all sets give
// the same bits. Instruction sets must not share code, so no inline function of another header is
// called: its single linked copy could contain code of the wider set.
#include <cstdint>

#include "trainer/outer/wire_kernels.h"

namespace sortie::trainer::outer {
namespace SORTIE_ISA_NAMESPACE {
namespace {

#define SORTIE_INLINE static inline __attribute__((always_inline))

using std::int64_t;
using std::uint32_t;
using std::uint8_t;

constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
/// Values that are processed at a time; they fit in the L1 cache. Even, for nibbles.
constexpr int64_t kStep = 64;

SORTIE_INLINE float as_float(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
SORTIE_INLINE uint32_t as_bits(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
SORTIE_INLINE int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// Bits of the largest magnitude; kInfinity or more if any value is infinite or NaN.
SORTIE_INLINE uint32_t top_of(const float* values, int64_t n) {
  uint32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = as_bits(values[i]) & kMagnitude;
    top = bits > top ? bits : top;
  }
  return top;
}

/// A float format of one sign bit, kExponent and kMantissa bits, with subnormals. Codes above
/// kLargest are no numbers. kTop is the exponent of the largest number.
template <int kExponent, int kMantissa, int kBias, uint32_t kLargest, int kTop>
struct Minifloat {
  static constexpr int kShift = 23 - kMantissa;
  static constexpr int kBits = 1 + kExponent + kMantissa;
  static constexpr uint32_t kCodes = 1u << (kBits - 1);  // per sign
  static constexpr uint32_t kLargestCode = kLargest;
  static constexpr bool kNibbles = kBits == 4;
  static constexpr uint32_t kLargestScale = 254 - kTop;  // scaled values are below infinity
  /// The scale of a block is 2^(floor(log2(largest magnitude)) - kTop), as in OCP's microscaling
  /// formats (1.0): scaled values are below twice the largest power of two of the format, and the
  /// topmost saturate. In a format of powers of two only (E3M0), a block whose largest value is
  /// nearer to the next power uses that one: the relative error of this value is then at most 1/3
  /// instead of 1/2, and on normal values the result is 1.2 dB better
  /// (tests/trainer/outer/wire_test.cc).
  static constexpr uint32_t kScaleRounding = kMantissa == 0 ? 0x400000u : 0u;

  static uint32_t scale_of(uint32_t top) {
    const uint32_t exponent = (top + kScaleRounding) >> 23;
    const uint32_t scale = exponent < kTop ? 0 : exponent - kTop;
    return scale < kLargestScale ? scale : kLargestScale;
  }
  /// Rounds to nearest, ties to even; saturates at the largest number.
  SORTIE_INLINE uint32_t code(float value, float inverse_scale) {
    constexpr uint32_t kUnit = static_cast<uint32_t>(127 + 23 + 1 - kBias - kMantissa) << 23;
    constexpr uint32_t kNormal = static_cast<uint32_t>(128 - kBias) << 23;
    const uint32_t bits = as_bits(value * inverse_scale);  // exact, or far below the smallest code
    const uint32_t magnitude = bits & kMagnitude;
    // The last place of the sum is the step of subnormals, so the addition rounds to a multiple of
    // it.
    const uint32_t subnormal = as_bits(as_float(magnitude) + as_float(kUnit)) - kUnit;
    const uint32_t rounded = magnitude + ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1u);
    const uint32_t normal = (rounded >> kShift) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
    const uint32_t nearest = magnitude < kNormal ? subnormal : normal;
    return (nearest < kLargest ? nearest : kLargest) | ((bits >> 31) << (kBits - 1));
  }
  /// Returns half of the number, which is a normal f32 or 0. `code` must have no other bits.
  SORTIE_INLINE float half(uint32_t code) {
    constexpr uint32_t kBase = static_cast<uint32_t>(127 - kBias) << 23;
    const uint32_t fraction = (code & (kCodes - 1)) << kShift;
    const float normal = as_float(fraction + kBase - (1u << 23));
    const float subnormal = as_float(fraction | kBase) - as_float(kBase);
    const float value = (code & (kCodes - 1)) < (1u << kMantissa) ? subnormal : normal;
    return as_float(as_bits(value) | ((code >> (kBits - 1)) << 31));
  }
};

using E4M3 = Minifloat<4, 3, 7, 0x7e, 8>;
using E5M2 = Minifloat<5, 2, 15, 0x7b, 15>;
using E2M1 = Minifloat<2, 1, 1, 7, 2>;
using E3M0 = Minifloat<3, 0, 3, 7, 4>;

/// Two codes; the lower byte is the first.
using Pair = std::uint16_t __attribute__((may_alias));

/// Packs an even number of codes, low nibble first.
SORTIE_INLINE void pack(const uint8_t* codes, int64_t n, uint8_t* nibbles) {
  const auto* pairs = reinterpret_cast<const Pair*>(codes);
#pragma omp simd
  for (int64_t i = 0; i < n / 2; ++i) nibbles[i] = static_cast<uint8_t>(pairs[i] | pairs[i] >> 4);
}
SORTIE_INLINE void unpack(const uint8_t* nibbles, int64_t n, uint8_t* codes) {
  auto* pairs = reinterpret_cast<Pair*>(codes);
#pragma omp simd
  for (int64_t i = 0; i < n / 2; ++i)
    pairs[i] = static_cast<Pair>((nibbles[i] | nibbles[i] << 4) & 0x0f0f);
}

template <class Format, int64_t kBlock>
SORTIE_INLINE bool encode_block(const float* values, int64_t block, uint8_t* payload,
                                uint8_t* scale) {
  const int64_t n = kBlock > 0 ? kBlock : block;
  const uint32_t top = top_of(values, n);
  const uint32_t exponent = Format::scale_of(top);
  *scale = static_cast<uint8_t>(exponent);
  const float inverse = as_float((254 - exponent) << 23);
  if constexpr (!Format::kNibbles) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      payload[i] = static_cast<uint8_t>(Format::code(values[i], inverse));
  } else {
    alignas(64) uint8_t codes[kStep];
    for (int64_t begin = 0; begin < n; begin += kStep) {
      const int64_t count = kBlock > 0 ? least(kBlock, kStep) : least(n - begin, kStep);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        codes[i] = static_cast<uint8_t>(Format::code(values[begin + i], inverse));
      pack(codes, count, payload + begin / 2);
    }
  }
  return top < kInfinity;
}

template <class Format, int64_t kBlock>
bool encode_blocks(const float* values, int64_t n, int64_t any_block, uint8_t* payload,
                   uint8_t* scales) {
  const int64_t block = kBlock > 0 ? kBlock : any_block;
  const int64_t bytes = Format::kNibbles ? block / 2 : block;
  bool finite = true;
  int64_t at = 0;
  for (; at + block <= n; at += block, payload += bytes, ++scales)
    finite &= encode_block<Format, kBlock>(values + at, block, payload, scales);
  if (at == n) return finite;
  // The last block, as if zeros followed.
  const uint32_t top = top_of(values + at, n - at);
  const uint32_t exponent = Format::scale_of(top);
  *scales = static_cast<uint8_t>(exponent);
  const float inverse = as_float((254 - exponent) << 23);
  for (int64_t i = 0; i < bytes; ++i) payload[i] = 0;
  for (int64_t i = 0; at + i < n; ++i) {
    const uint32_t code = Format::code(values[at + i], inverse);
    if constexpr (Format::kNibbles)
      payload[i / 2] = static_cast<uint8_t>(payload[i / 2] | (code << (i % 2 * 4)));
    else
      payload[i] = static_cast<uint8_t>(code);
  }
  return finite && top < kInfinity;
}

/// Stores or adds a decoded value.
template <bool kAdd>
SORTIE_INLINE void put(float* out, float weight, float value) {
  *out = kAdd ? *out + weight * value : value;
}

template <class Format, int64_t kBlock, bool kAdd>
bool decode_blocks(float weight, const uint8_t* payload, const uint8_t* scales, int64_t n,
                   int64_t any_block, float* out) {
  const int64_t block = kBlock > 0 ? kBlock : any_block;
  bool good = true;
  for (int64_t at = 0; at < n; at += block, ++scales) {
    const uint32_t exponent = *scales;
    good &= exponent <= Format::kLargestScale;
    const float scale = as_float((exponent + 1) << 23);  // of halves
    const int64_t values = least(block, n - at);
    for (int64_t begin = 0; begin < values; begin += kStep) {
      const int64_t count = least(values - begin, kStep);
      float* to = out + at + begin;
      alignas(64) uint8_t nibbles[kStep];
      const uint8_t* codes = nullptr;
      if constexpr (Format::kNibbles) {
        unpack(payload + (at + begin) / 2, count + (count & 1), nibbles);
        codes = nibbles;
      } else {
        codes = payload + at + begin;
        uint8_t top = 0;
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < count; ++i) {
          const auto code = static_cast<uint8_t>(codes[i] & 0x7fu);
          top = code > top ? code : top;
        }
        good &= top <= Format::kLargestCode;
      }
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const float value = Format::half(codes[i]) * scale;
        put<kAdd>(to + i, weight, value);
      }
    }
  }
  return good;
}

template <class Format>
bool encode_minifloat(const float* values, int64_t n, int64_t block, uint8_t* payload,
                      uint8_t* scales) {
  return block == 32 ? encode_blocks<Format, 32>(values, n, block, payload, scales)
                     : encode_blocks<Format, 0>(values, n, block, payload, scales);
}
template <class Format, bool kAdd>
bool decode_minifloat(float weight, const uint8_t* payload, const uint8_t* scales, int64_t n,
                      int64_t block, float* out) {
  return block == 32 ? decode_blocks<Format, 32, kAdd>(weight, payload, scales, n, block, out)
                     : decode_blocks<Format, 0, kAdd>(weight, payload, scales, n, block, out);
}

#include "trainer/outer/wire_body_plain.h"

template <class Format>
constexpr WireKernels minifloat_kernels() {
  return {encode_minifloat<Format>, decode_minifloat<Format, false>,
          decode_minifloat<Format, true>};
}

}  // namespace

extern const WireTable kWires;
constexpr WireTable kTable = {.f32 = {encode_f32, decode_f32<false>, decode_f32<true>},
                              .bf16 = {encode_bf16, decode_bf16<false>, decode_bf16<true>},
                              .int8 = {encode_int8, decode_int8<false>, decode_int8<true>},
                              .e4m3 = minifloat_kernels<E4M3>(),
                              .e5m2 = minifloat_kernels<E5M2>(),
                              .e2m1 = minifloat_kernels<E2M1>(),
                              .e3m0 = minifloat_kernels<E3M0>()};
const WireTable kWires = kTable;

}  // namespace SORTIE_ISA_NAMESPACE
}  // namespace sortie::trainer::outer
