// Fragments as the PTX ISA documents them; every lane gets what all gave and computes its part.
#include "tests/support/cuda/tensor_core.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>

#include "common/base/check.h"

namespace emulated_cuda {
namespace {

struct Operands {
  std::uint32_t a[4], b[2];
};

float of_bf16(std::uint32_t bits) {
  return __uint_as_float(bits << 16);
}

/// e4m3 (bias 7, no infinity, S1111111 is NaN) and e5m2 (bias 15, as IEEE 754).
float of_fp8(std::uint32_t bits, int mantissa_bits) {
  const int exponent_bits = 7 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const auto mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
  const auto exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const bool top = exponent == (1 << exponent_bits) - 1;
  const float sign = (bits & 0x80u) != 0 ? -1.0f : 1.0f;
  if (mantissa_bits == 3 ? top && mantissa == 7 : top && mantissa != 0) return NAN;
  if (mantissa_bits == 2 && top) return sign * INFINITY;
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(static_cast<float>(whole),
                           std::max(exponent, 1) - bias - mantissa_bits);
}

/// `PerRegister` elements of a register make up the columns of a and the rows of b.
template <int PerRegister, class DecodeA, class DecodeB>
void mma(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
         const DecodeA& decode_a, const DecodeB& decode_b) {
  constexpr int kBits = 32 / PerRegister;
  constexpr std::uint32_t kMask = (1u << kBits) - 1;
  Operands mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  const std::byte* bytes = exchange_in_warp(&mine, sizeof mine);
  std::array<Operands, 32> all;
  std::memcpy(all.data(), bytes, sizeof all);
  const auto lane = static_cast<unsigned>(emulated_lane());
  const unsigned g = lane / 4, t = lane % 4;
  for (unsigned half = 0; half < 2; ++half)     // of k
    for (unsigned from = 0; from < 4; ++from)   // the lane of the group that holds it
      for (int e = 0; e < PerRegister; ++e) {
        const auto element = [&](std::uint32_t value) { return value >> (e * kBits) & kMask; };
        const Operands& row = all[4 * g + from];
        const float low = decode_a(element(row.a[2 * half])),
                    high = decode_a(element(row.a[2 * half + 1]));
        const float left = decode_b(element(all[4 * (2 * t) + from].b[half])),
                    right = decode_b(element(all[4 * (2 * t + 1) + from].b[half]));
        c[0] += low * left;
        c[1] += low * right;
        c[2] += high * left;
        c[3] += high * right;
      }
}

}  // namespace

void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  mma<2>(c, a, b, of_bf16, of_bf16);
}

void mma_fp8(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
             int a_mantissa, int b_mantissa) {
  mma<4>(
      c, a, b, [&](std::uint32_t bits) { return of_fp8(bits, a_mantissa); },
      [&](std::uint32_t bits) { return of_fp8(bits, b_mantissa); });
}

void ldmatrix_x4(std::uint32_t (&registers)[4], const void* row, bool transposed) {
  SORTIE_CHECK(reinterpret_cast<std::uintptr_t>(row) % 16 == 0, "ldmatrix at an odd address");
  std::array<std::uint16_t, 8> mine;
  std::memcpy(mine.data(), row, sizeof mine);
  const std::byte* all = exchange_in_warp(mine.data(), sizeof mine);
  const auto lane = static_cast<unsigned>(emulated_lane());
  const unsigned g = lane / 4, t = lane % 4;
  const auto element = [&](unsigned matrix, unsigned r, unsigned column) {
    std::uint16_t bits;
    std::memcpy(&bits, all + (8 * matrix + r) * sizeof mine + column * sizeof bits, sizeof bits);
    return std::uint32_t{bits};
  };
  for (unsigned m = 0; m < 4; ++m)
    registers[m] = transposed ? element(m, 2 * t, g) | element(m, 2 * t + 1, g) << 16
                              : element(m, g, 2 * t) | element(m, g, 2 * t + 1) << 16;
}

}  // namespace emulated_cuda
