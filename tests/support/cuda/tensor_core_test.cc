// Tensor cores and asynchronous copies of an emulated GPU: compares products with sums of the same
// elements, and checks that copies take effect only when waited for.
#include "trainer/ops/cuda/warpgroup.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "tests/support/cuda/grid.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <class Kernel>
void run_warp(const Kernel& kernel) {
  for (std::uint64_t seed = 1; seed < 4; ++seed)
    emulated_cuda::run_grid({1}, {kWarp}, 16 << 10, kernel, seed);
}

/// Whole numbers, so that sums do not depend on the order; adjacent ones differ.
int number(int row, int col, int seed) {
  return (row * 7 + col * 3 + seed) % 11 - 5;
}

std::uint16_t bf16_bits(int value) {
  return bf16(static_cast<float>(value)).bits;
}

/// Encodes -4 ... 4 in a format with this many mantissa bits.
std::uint8_t fp8_bits(int value, int mantissa) {
  const int bias = mantissa == 3 ? 7 : 15, size = std::abs(value);
  if (size == 0) return 0;
  const int exponent = size >= 4 ? 2 : size >= 2 ? 1 : 0;
  const int rest = (size << mantissa >> exponent) - (1 << mantissa);
  return static_cast<std::uint8_t>((value < 0 ? 0x80 : 0) | (exponent + bias) << mantissa | rest);
}

/// Compares this lane's fragment of c with the sum over k of a(row, k) b(k, col), plus 1.
template <class A, class B>
void check_product(const float (&c)[4], int depth, const A& a, const B& b) {
  const int g = emulated_lane() / 4, t = emulated_lane() % 4;
  for (int i = 0; i < 4; ++i) {
    int expected = 1;
    for (int k = 0; k < depth; ++k) expected += a(g + i / 2 * 8, k) * b(k, 2 * t + i % 2);
    CHECK(c[i] == static_cast<float>(expected));
  }
}

}  // namespace

TEST_CASE("wgmma multiplies tiles, and fragments with tiles, of one panel and of two") {
  const auto run = []<int kColumns> {
    constexpr int kRowsOfA = 128, kRows = 64;
    for (std::uint64_t seed = 1; seed < 3; ++seed)
      emulated_cuda::run_grid(
          {1}, {2 * kWarpgroup}, PanelTile<kColumns>::elements(kRowsOfA + kRows) * sizeof(bf16),
          [] {
            // a [128, columns], 64 rows per warpgroup, and b [64, columns].
            auto* a = shared_memory<bf16>();
            auto* b = a + PanelTile<kColumns>::elements(kRowsOfA);
            const auto thread = static_cast<int>(threadIdx.x);
            for (int i = thread; i < kRowsOfA * kColumns; i += 2 * kWarpgroup) {
              const int row = i / kColumns, col = i % kColumns;
              a[PanelTile<kColumns>::at(kRowsOfA, row, col)].bits = bf16_bits(number(row, col, 0));
              if (row < kRows)
                b[PanelTile<kColumns>::at(kRows, row, col)].bits = bf16_bits(number(row, col, 4));
            }
            __syncthreads();
            const int warp = thread / kWarp, lane = thread % kWarp, g = lane / 4, t = lane % 4;
            float s[kRows / 8][4];
            begin_rows<kRowsOfA, kRows, kColumns>(s, a, warp / 4 * 64, b);
            for (int n = 0; n < kRows / 8; ++n)
              for (int i = 0; i < 4; ++i) {
                int expected = 0;
                for (int k = 0; k < kColumns; ++k)
                  expected +=
                      number(warp * 16 + g + i / 2 * 8, k, 0) * number(8 * n + 2 * t + i % 2, k, 4);
                CHECK(s[n][i] == static_cast<float>(expected));
              }
            // A matrix of small numbers in fragments, multiplied by b.
            float left[kRows / 8][4], sums[kColumns / 8][4] = {};
            const auto small = [](int row, int col) { return number(row, col, 2); };
            for (int n = 0; n < kRows / 8; ++n)
              for (int i = 0; i < 4; ++i)
                left[n][i] =
                    static_cast<float>(small(warp * 16 + g + i / 2 * 8, 8 * n + 2 * t + i % 2));
            std::uint32_t fragments[kRows / 16][4];
            to_fragments(fragments, left);
            begin_fragments<kRows, kColumns>(sums, fragments, b, true);
            for (int n = 0; n < kColumns / 8; ++n)
              for (int i = 0; i < 4; ++i) {
                int expected = 0;
                for (int k = 0; k < kRows; ++k)
                  expected +=
                      small(warp * 16 + g + i / 2 * 8, k) * number(k, 8 * n + 2 * t + i % 2, 4);
                CHECK(sums[n][i] == static_cast<float>(expected));
              }
          },
          seed);
  };
  run.operator()<64>();
  run.operator()<128>();
}

TEST_CASE("mma multiplies fragments that ldmatrix loads") {
  run_warp([] {
    // a [16, 16] row-major; b [16, 8] row-major, so it is transposed when it is loaded.
    auto* a = shared_memory<std::uint16_t>();
    auto* b = a + 16 * 16;
    const int lane = emulated_lane();
    for (int i = lane; i < 16 * 16; i += kWarp) a[i] = bf16_bits(number(i / 16, i % 16, 0));
    for (int i = lane; i < 16 * 8; i += kWarp) b[i] = bf16_bits(number(i / 8, i % 8, 4));
    __syncwarp();
    std::uint32_t left[4], right[4];
    ldmatrix_x4(left, a + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x4_trans(right, b + lane % 16 * 8);
    const std::uint32_t pair[2] = {right[0], right[1]};
    float c[4] = {1, 1, 1, 1};
    mma_bf16(c, left, pair);
    check_product(
        c, 16, [](int row, int k) { return number(row, k, 0); },
        [](int k, int col) { return number(k, col, 4); });
    // The same b column-major, without a transposition.
    auto* columns = b + 16 * 8;
    for (int i = lane; i < 8 * 16; i += kWarp) columns[i] = bf16_bits(number(i % 16, i / 16, 4));
    __syncwarp();
    std::uint32_t plain[4];
    ldmatrix_x4(plain, columns + lane % 8 * 16 + lane / 8 % 2 * 8);
    CHECK(plain[0] == right[0]);
    CHECK(plain[1] == right[1]);
  });
}

TEST_CASE("mma of fp8 in both formats") {
  run_warp([] {
    const auto run = [](auto a_format, auto b_format) {
      constexpr int kA = a_format() == Fp8::e4m3 ? 3 : 2, kB = b_format() == Fp8::e4m3 ? 3 : 2;
      const auto a = [](int row, int k) { return number(row, k, 1) / 2 * 2; };
      const auto b = [](int k, int col) { return number(k, col, 2) / 2; };
      const int g = emulated_lane() / 4, t = emulated_lane() % 4;
      std::uint32_t left[4] = {}, right[2] = {};
      for (int e = 0; e < 4; ++e) {
        for (int i = 0; i < 4; ++i)
          left[i] |= std::uint32_t{fp8_bits(a(g + i % 2 * 8, 4 * t + e + i / 2 * 16), kA)} << 8 * e;
        for (int i = 0; i < 2; ++i)
          right[i] |= std::uint32_t{fp8_bits(b(4 * t + e + i * 16, g), kB)} << 8 * e;
      }
      float c[4] = {1, 1, 1, 1};
      mma_fp8<a_format(), b_format()>(c, left, right);
      check_product(c, 32, a, b);
    };
    constexpr std::integral_constant<Fp8, Fp8::e4m3> e4m3;
    constexpr std::integral_constant<Fp8, Fp8::e5m2> e5m2;
    run(e4m3, e4m3);
    run(e5m2, e4m3);
    run(e4m3, e5m2);
    run(e5m2, e5m2);
  });
}

TEST_CASE("the ends of the fp8 formats") {
  run_warp([] {
    // a has one element, in column 0 of every row; b consists of ones: c is that element.
    const auto decoded = [](auto format, std::uint8_t bits) {
      const bool first = emulated_lane() % 4 == 0;
      constexpr std::uint8_t kOne = format() == Fp8::e4m3 ? 0x38 : 0x3c;
      const std::uint32_t column = first ? bits : 0, one = first ? kOne : 0;
      const std::uint32_t a[4] = {column, column, 0, 0}, b[2] = {one, 0};
      float c[4] = {};
      mma_fp8<format(), format()>(c, a, b);
      return c[3];
    };
    constexpr std::integral_constant<Fp8, Fp8::e4m3> e4m3;
    constexpr std::integral_constant<Fp8, Fp8::e5m2> e5m2;
    CHECK(decoded(e4m3, 0x7e) == 448.0f);
    CHECK(decoded(e4m3, 0x81) == -0x1p-9f);
    CHECK(std::isnan(decoded(e4m3, 0x7f)));
    CHECK(decoded(e5m2, 0x7b) == 57344.0f);
    CHECK(decoded(e5m2, 0x01) == 0x1p-16f);
    CHECK(std::isinf(decoded(e5m2, 0x7c)));
    CHECK(std::isnan(decoded(e5m2, 0x7e)));
  });
}

TEST_CASE("a copy is there after the wait for its group, and not before") {
  std::vector<std::uint32_t> from(4 * kWarp * 2);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint32_t>(i) + 1;
  run_warp([&] {
    auto* to = shared_memory<std::uint32_t>() + 12 * emulated_lane();
    const std::uint32_t* source = from.data() + 8 * emulated_lane();
    to[0] = to[4] = to[8] = 77;
    cp_async_16(to, source);
    cp_async_commit();
    cp_async_16(to + 4, source + 4);
    cp_async_16(to + 8, nullptr, false);
    cp_async_commit();
    CHECK(to[0] == 77);
    cp_async_wait<1>();
    CHECK(to[0] == source[0]);
    CHECK(to[3] == source[3]);
    CHECK(to[4] == 77);
    CHECK(to[8] == 77);
    cp_async_wait<0>();
    CHECK(to[4] == source[4]);
    CHECK(to[8] == 0);
  });
}

}  // namespace sortie::trainer::ops::cuda
