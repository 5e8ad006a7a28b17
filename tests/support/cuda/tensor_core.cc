// Fragments as documented in the PTX ISA. One lane computes for the whole warp.
#include "tests/support/cuda/tensor_core.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>

#include "common/base/check.h"

namespace emulated_cuda {
namespace {

float of_bf16(std::uint32_t bits) {
  return __uint_as_float(bits << 16);
}

/// Decodes e4m3 (bias 7, no infinity, S1111111 is NaN) or e5m2 (bias 15, as IEEE 754).
float of_fp8(std::uint32_t bits, int mantissa_bits) {
  const int exponent_bits = 7 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const auto mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
  const auto exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const bool top = exponent == (1 << exponent_bits) - 1;
  const float sign = (bits & 0x80u) != 0 ? -1.0f : 1.0f;
  if (mantissa_bits == 3 ? top && mantissa == 7 : top && mantissa != 0) return NAN;
  if (mantissa_bits == 2 && top) return sign * INFINITY;
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - bias - mantissa_bits);
}

/// The values of all codes of a format.
template <int Mantissa>
const std::array<float, 256>& fp8_values() {
  static const auto values = [] {
    std::array<float, 256> all;
    for (unsigned bits = 0; bits < all.size(); ++bits) all[bits] = of_fp8(bits, Mantissa);
    return all;
  }();
  return values;
}

constexpr int kBf16 = 7;
/// Element `index` of a register, in a format with `Mantissa` bits of mantissa.
template <int Mantissa>
float element_of(std::uint32_t bits, unsigned index) {
  if constexpr (Mantissa == kBf16)
    return of_bf16(bits >> (16 * index) & 0xffffu);
  else
    return fp8_values<Mantissa>()[bits >> (8 * index) & 0xffu];
}

/// What a lane contributes and receives, in the documented fragments.
struct Operands {
  std::uint32_t a[4], b[2];
  float c[4];
};
struct Sums {
  float c[4];
};

/// The product of a warp: converts fragments to matrices and back.
template <int MantissaA, int MantissaB>
void multiply(const std::byte* given, std::byte* results) {
  constexpr unsigned kPerRegister = MantissaA == kBf16 ? 2 : 4;
  constexpr unsigned kHalf = 4 * kPerRegister;  // half of the columns of a
  std::array<Operands, 32> all;
  std::memcpy(all.data(), given, sizeof all);
  std::array<std::array<float, 2 * kHalf>, 16> a;
  std::array<std::array<float, 8>, 2 * kHalf> b;
  std::array<std::array<float, 8>, 16> c;
  for (unsigned lane = 0; lane < 32; ++lane) {
    const Operands& its = all[lane];
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned e = 0; e < kPerRegister; ++e) {
      const unsigned k = t * kPerRegister + e;
      for (unsigned i = 0; i < 4; ++i)
        a[g + i % 2 * 8][k + i / 2 * kHalf] = element_of<MantissaA>(its.a[i], e);
      for (unsigned i = 0; i < 2; ++i) b[k + i * kHalf][g] = element_of<MantissaB>(its.b[i], e);
    }
    for (unsigned i = 0; i < 4; ++i) c[g + i / 2 * 8][2 * t + i % 2] = its.c[i];
  }
  for (std::size_t row = 0; row < c.size(); ++row)
    for (std::size_t k = 0; k < b.size(); ++k)
      for (std::size_t col = 0; col < 8; ++col) c[row][col] += a[row][k] * b[k][col];
  std::array<Sums, 32> sums;
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < 4; ++i)
      sums[lane].c[i] = c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
  std::memcpy(results, sums.data(), sizeof sums);
}

void mma(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
         WarpFunction product) {
  Operands mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  std::memcpy(mine.c, c, sizeof mine.c);
  const std::byte* sums = compute_in_warp(&mine, sizeof mine, product);
  std::memcpy(c, sums + static_cast<unsigned>(emulated_lane()) * sizeof(Sums), sizeof c);
}

}  // namespace

void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  mma(c, a, b, multiply<kBf16, kBf16>);
}

void mma_fp8(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
             int a_mantissa, int b_mantissa) {
  if (a_mantissa == 3)
    mma(c, a, b, b_mantissa == 3 ? multiply<3, 3> : multiply<3, 2>);
  else
    mma(c, a, b, b_mantissa == 3 ? multiply<2, 3> : multiply<2, 2>);
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

namespace {

/// Address of the start of shared memory; a multiple of 1024 bytes, like shared memory's alignment.
constexpr std::uint32_t kFirstShared = 1024;

/// An operand as its descriptor defines it: addresses and strides in units of 16 bytes, with the
/// 128-byte swizzle, which XORs address bits 4 to 6 with bits 7 to 9.
struct SharedOperand {
  std::uint64_t begin, panel, eight_rows;

  explicit SharedOperand(std::uint64_t bits)
      : begin((bits & 0x3fff) << 4),
        panel((bits >> 16 & 0x3fff) << 4),
        eight_rows((bits >> 32 & 0x3fff) << 4) {
    SORTIE_CHECK(bits >> 62 == 1, "wgmma: a matrix without the 128-byte swizzle");
  }
  /// Two adjacent elements of a line, starting at `column`. A line is a row, or a column if the
  /// operand is transposed. It has 64 elements in each panel.
  std::uint32_t pair(std::uint64_t line, std::uint64_t column) const {
    return element(line, column) | element(line, column + 1) << 16;
  }
  std::uint32_t element(std::uint64_t line, std::uint64_t column) const {
    std::uint64_t address =
        begin + line / 8 * eight_rows + line % 8 * 128 + column / 64 * panel + column % 64 * 2;
    address ^= (address >> 7 & 7) << 4;
    std::uint16_t bits;
    std::memcpy(&bits, here.shared + (address - kFirstShared), sizeof bits);
    return bits;
  }
};

}  // namespace

std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(static_cast<const std::byte*>(shared) - here.shared) +
         kFirstShared;
}

void wgmma(float (*c)[4], int columns_of_8, bool adds, const std::uint32_t (*a)[4],
           std::uint64_t a_matrix, std::uint64_t b_matrix, bool b_transposed) {
  const auto lane = static_cast<std::uint64_t>(emulated_lane()), g = lane / 4, t = lane % 4;
  const auto warp = static_cast<std::uint64_t>(here.index / 32 % 4);
  std::uint32_t left[4];
  if (a != nullptr) {
    std::memcpy(left, *a, sizeof left);
  } else {
    const SharedOperand matrix(a_matrix);
    for (std::uint64_t i = 0; i < 4; ++i)
      left[i] = matrix.pair(16 * warp + g + i % 2 * 8, 2 * t + i / 2 * 8);
  }
  const SharedOperand matrix(b_matrix);
  for (int n = 0; n < columns_of_8; ++n) {
    const std::uint64_t column = 8 * static_cast<std::uint64_t>(n) + g;
    std::uint32_t right[2];
    for (std::uint64_t i = 0; i < 2; ++i) {
      const std::uint64_t k = 2 * t + i * 8;
      right[i] = b_transposed ? matrix.element(k, column) | matrix.element(k + 1, column) << 16
                              : matrix.pair(column, k);
    }
    if (!adds) std::fill_n(c[n], 4, 0.0f);
    mma_bf16(c[n], left, right);
  }
}

}  // namespace emulated_cuda
