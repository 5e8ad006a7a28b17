#include "trainer/outer/wire.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "common/config/outer.h"
#include "trainer/random/random.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;
using config::OuterWire;
using outer::WireFormat;
using outer::WireWork;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::array kWires{OuterWire::f32,  OuterWire::bf16, OuterWire::int8, OuterWire::e4m3,
                            OuterWire::e5m2, OuterWire::e2m1, OuterWire::e3m0};

/// A format by its definition: bits of exponent and mantissa, bias, exponent of the largest number,
/// largest code, and whether the exponent of scales is rounded to nearest.
struct Definition {
  OuterWire wire;
  int exponent, mantissa, bias, top;
  unsigned largest;
  bool scale_to_nearest;

  unsigned codes() const { return 1u << (1 + exponent + mantissa); }
  double value(unsigned code) const {
    const unsigned magnitude = code % (codes() / 2);
    const int e = static_cast<int>(magnitude >> mantissa);
    const double fraction = std::ldexp(magnitude % (1u << mantissa), -mantissa);
    const double size =
        e == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, e - bias);
    return code >= codes() / 2 ? -size : size;
  }
  bool is_number(unsigned code) const { return code % (codes() / 2) <= largest; }
  /// Returns the nearest of all codes. Ties go to the even one.
  unsigned code(double wanted) const {
    unsigned best = 0;
    for (unsigned code = 1; code <= largest; ++code) {
      const double now = std::abs(std::abs(wanted) - value(code));
      const double before = std::abs(std::abs(wanted) - value(best));
      if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return best + (std::signbit(wanted) ? codes() / 2 : 0);
  }
  unsigned scale(double largest_value) const {
    if (largest_value == 0) return 0;
    int e = std::ilogb(largest_value);
    if (scale_to_nearest && largest_value >= std::ldexp(1.5, e)) ++e;
    return static_cast<unsigned>(std::clamp(e - top + 127, 0, 254 - top));
  }
};
constexpr std::array kDefinitions{Definition{OuterWire::e4m3, 4, 3, 7, 8, 0x7e, false},
                                  Definition{OuterWire::e5m2, 5, 2, 15, 15, 0x7b, false},
                                  Definition{OuterWire::e2m1, 2, 1, 1, 2, 7, false},
                                  Definition{OuterWire::e3m0, 3, 0, 3, 4, 7, true}};

std::vector<WireWork> all_ways() {
  std::vector<WireWork> ways;
  for (const ops::Isa isa : {ops::Isa::baseline, ops::Isa::avx2, ops::Isa::avx512})
    if (isa <= ops::best_isa()) ways.push_back({1, isa});
  ways.push_back({3, ops::best_isa()});
  return ways;
}

std::vector<std::byte> encoded(const WireFormat& format, std::span<const float> values,
                               const WireWork& work = {}) {
  std::vector<std::byte> bytes(outer::encoded_bytes(format, values.size()), std::byte{0xa5});
  REQUIRE(outer::encode(format, values, bytes, work));
  return bytes;
}
std::vector<float> decoded(const WireFormat& format, std::span<const std::byte> bytes,
                           std::size_t values, const WireWork& work = {}) {
  std::vector<float> out(values, kNan);
  REQUIRE(outer::decode(format, bytes, out, work));
  return out;
}

/// Returns what encode() must write by the definition.
std::vector<std::byte> reference(const Definition& format, std::size_t block,
                                 std::span<const float> values) {
  const std::size_t blocks = (values.size() + block - 1) / block;
  const std::size_t bits = format.codes() == 16 ? 4 : 8;
  std::vector<std::byte> bytes(blocks * block * bits / 8);
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto part = values.subspan(b * block, std::min(block, values.size() - b * block));
    double largest = 0;
    for (const float value : part)
      largest = std::max(largest, static_cast<double>(std::abs(value)));
    const unsigned scale = format.scale(largest);
    for (std::size_t i = 0; i < part.size(); ++i) {
      const unsigned code = format.code(std::ldexp(part[i], 127 - static_cast<int>(scale)));
      const std::size_t at = b * block + i;
      bytes[at * bits / 8] |= static_cast<std::byte>(code << (bits == 4 ? at % 2 * 4 : 0));
    }
    bytes.push_back(static_cast<std::byte>(scale));
  }
  return bytes;
}

std::vector<float> normal_values(std::size_t count, std::uint64_t key) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = random_normal(key, i);
  return values;
}
/// Returns finite values of any exponent, with zeros and subnormals. Each block of 64 has its own
/// range.
std::vector<float> wild_values(std::size_t count, std::uint64_t key) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random_bits(key, i);
    const int center = static_cast<int>(random_bits(key + 1, i / 64) % 300) - 160;
    const double size = std::ldexp(1.0 + random_uniform(key + 2, i),
                                   std::min(center + static_cast<int>(bits % 24), 126));
    values[i] = bits >> 60 == 0 ? 0.0f : static_cast<float>(bits >> 32 & 1 ? -size : size);
  }
  return values;
}

double decibels(std::span<const float> values, std::span<const float> got) {
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    signal += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    noise += std::pow(static_cast<double>(values[i]) - static_cast<double>(got[i]), 2);
  }
  return 10 * std::log10(signal / noise);
}

}  // namespace

TEST_CASE("every code of the wires' floats, at every scale, is what its definition says") {
  for (const Definition& format : kDefinitions)
    for (const WireWork& work : all_ways()) {
      CAPTURE(static_cast<int>(format.wire));
      const WireFormat wire{format.wire, 2};
      const std::size_t code_bytes = format.codes() == 16 ? 1 : 2;
      for (unsigned scale = 0; scale < 256; ++scale)
        for (unsigned code = 0; code < format.codes(); ++code) {
          std::vector<std::byte> bytes(code_bytes + 1, static_cast<std::byte>(code));
          bytes.back() = static_cast<std::byte>(scale);
          std::array<float, 1> got{};
          const bool good = outer::decode(wire, bytes, got, work);
          REQUIRE(good == (format.is_number(code) && scale <= 254u - format.top));
          if (!good) continue;
          const auto wanted =
              static_cast<float>(std::ldexp(format.value(code), static_cast<int>(scale) - 127));
          REQUIRE(std::bit_cast<std::uint32_t>(got[0]) == std::bit_cast<std::uint32_t>(wanted));
        }
    }
}

TEST_CASE(
    "values between two numbers go to the nearer one, ties to the even code, the rest to "
    "the largest") {
  for (const Definition& format : kDefinitions)
    for (const int shift : {-110, -3, 0, 90}) {
      std::vector<float> values;
      const auto add = [&](double value) {
        const auto exact = static_cast<float>(std::ldexp(value, shift));
        for (const float near : {exact, std::nextafter(exact, 0.0f), std::nextafter(exact, kInf)}) {
          // The first value of a block determines its scale.
          const auto first = static_cast<float>(std::ldexp(1.0, format.top + shift));
          values.insert(values.end(), {first, near, first, -near});
        }
      };
      for (unsigned code = 0; code < format.largest; ++code) {
        add(format.value(code));
        add((format.value(code) + format.value(code + 1)) / 2);
      }
      add(format.value(format.largest));
      add(1.4 * std::ldexp(1.0, format.top));
      // Up to where the scale changes.
      if (!format.scale_to_nearest) add(std::ldexp(1.0, format.top + 1) * 0.9999);
      for (const WireWork& work : all_ways())
        CHECK(encoded({format.wire, 2}, values, work) == reference(format, 2, values));
    }
}

TEST_CASE("blocks of any size, odd lengths, zeros and subnormals are encoded as defined") {
  for (const Definition& format : kDefinitions)
    for (const std::int64_t block : {2, 6, 32, 64, 130})
      for (const std::size_t count : {1u, 31u, 32u, 33u, 64u, 997u}) {
        std::vector<float> values = wild_values(count, 7 + static_cast<std::uint64_t>(block));
        if (count > 100) std::fill(values.begin() + 32, values.begin() + 96, -0.0f);
        const auto wanted = reference(format, static_cast<std::size_t>(block), values);
        for (const WireWork& work : all_ways()) {
          CAPTURE(static_cast<int>(format.wire));
          CAPTURE(block);
          CAPTURE(count);
          CHECK(encoded({format.wire, block}, values, work) == wanted);
        }
      }
}

TEST_CASE("wires without minifloats: bf16 to nearest even and never infinite, int8 in 127ths") {
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> values{1.0f, 0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, -largest, 0x1p-149f};
  const auto got = decoded({OuterWire::bf16, 32}, encoded({OuterWire::bf16, 32}, values), 6);
  CHECK(got == std::vector<float>{1.0f, 1.0f, 0x1.04p0f, 0x1.02p0f, -0x1.fep127f, 0.0f});

  for (const float top : {largest, 254.0f, 0x1p-120f, 0x1p-140f}) {
    const std::vector<float> small{top, -top, top * 0.25f, 0.0f, top / 254, -top / 127};
    const WireFormat wire{OuterWire::int8, 4};
    const auto bytes = encoded(wire, small);
    REQUIRE(bytes.size() == 16);
    const auto back = decoded(wire, bytes, 6);
    for (std::size_t i = 0; i < small.size(); ++i)
      CHECK(std::abs(back[i] - small[i]) <= std::max(top / 127 * 0.501f, 0x1p-127f));
    if (top > 1) CHECK(std::to_integer<int>(bytes[0]) == 127);
  }
  std::vector<std::byte> never(8, std::byte{0x80});  // -128
  never[7] = std::byte{0x3f};
  std::array<float, 4> out{};
  CHECK_FALSE(outer::decode({OuterWire::int8, 4}, never, out));
}

TEST_CASE("wires are the same to the bit on all instruction sets and numbers of threads") {
  const std::size_t count = 100003;
  for (const OuterWire wire : kWires)
    for (const std::int64_t block : {32, 48}) {
      const WireFormat format{wire, block};
      const auto values = wild_values(count, 3);
      const auto bytes = encoded(format, values, {1, ops::Isa::baseline});
      const auto back = decoded(format, bytes, count, {1, ops::Isa::baseline});
      std::vector<float> sum = normal_values(count, 4);
      for (std::size_t i = 0; i < count; ++i) {
        const float product = 0.3f * back[i];
        sum[i] = sum[i] + product;
      }
      for (const WireWork& work : all_ways()) {
        CAPTURE(static_cast<int>(wire));
        CHECK(encoded(format, values, work) == bytes);
        CHECK(decoded(format, bytes, count, work) == back);
        std::vector<float> added = normal_values(count, 4);
        REQUIRE(outer::decode_add(format, 0.3f, bytes, added, work));
        CHECK(added == sum);
      }
      // Encoding again loses nothing more.
      if (wire != OuterWire::int8) CHECK(encoded(format, back) == bytes);
    }
}

TEST_CASE("a value that is not finite is told, wherever it is") {
  for (const OuterWire wire : kWires)
    for (const float bad : {kNan, kInf, -kInf})
      for (const WireWork& work : all_ways())
        for (const std::size_t at : {0u, 31u, 32u, 69u, 40000u, 100002u}) {
          std::vector<float> values(100003, 1.0f);
          values[at] = bad;
          const WireFormat format{wire, 32};
          std::vector<std::byte> bytes(outer::encoded_bytes(format, values.size()));
          CHECK_FALSE(outer::encode(format, values, bytes, work));
        }
  for (const OuterWire wire : {OuterWire::f32, OuterWire::bf16}) {
    std::vector<std::byte> bytes(outer::encoded_bytes({wire, 32}, 3), std::byte{0xff});
    std::array<float, 3> out{};
    CHECK_FALSE(outer::decode({wire, 32}, bytes, out));
  }
}

TEST_CASE("signal to noise of normally distributed values") {
  const auto values = normal_values(1 << 16, 1);
  const auto of = [&](OuterWire wire) {
    const WireFormat format{wire, 32};
    return decibels(values, decoded(format, encoded(format, values), values.size()));
  };
  CHECK(of(OuterWire::bf16) > 55);
  CHECK(of(OuterWire::int8) > 44);
  CHECK(of(OuterWire::e4m3) > 30);
  CHECK(of(OuterWire::e5m2) > 25);
  CHECK(of(OuterWire::e2m1) > 18);
  // It would be 13.1 with the exponent of scales rounded down.
  CHECK(of(OuterWire::e3m0) > 14);
}

TEST_CASE("encoded sizes: codes of full blocks, and a scale of each") {
  const auto bytes = [](OuterWire wire, std::int64_t block, std::size_t values) {
    return outer::encoded_bytes({wire, block}, values);
  };
  CHECK(bytes(OuterWire::f32, 32, 33) == 132);
  CHECK(bytes(OuterWire::bf16, 32, 33) == 66);
  CHECK(bytes(OuterWire::int8, 32, 33) == 2 * 36);
  CHECK(bytes(OuterWire::e4m3, 32, 64) == 66);
  CHECK(bytes(OuterWire::e5m2, 32, 65) == 99);
  CHECK(bytes(OuterWire::e2m1, 32, 64) == 34);
  CHECK(bytes(OuterWire::e3m0, 128, 1) == 65);
  CHECK(bytes(OuterWire::e3m0, 128, 0) == 0);
}
