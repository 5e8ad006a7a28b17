// Wires: vectors of f32 as they travel between sites, in 4 to 32 bits a value.
//
// Encoded: the values' codes, then the scales. f32 and bf16 have no scales. int8 has an f32 scale
// per block; E4M3, E5M2, E2M1 and E3M0 have one of E8M0 (2^(byte - 127)), as OCP's microscaling
// formats 1.0 do (E3M0, a sign and a power of two, is none of them). Codes of 4 bits lie two in a
// byte, low nibble first. A last block that is not full is filled up with zeros. Little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trainer/ops/isa.h"

namespace sortie::config {
enum class OuterWire : std::uint8_t;
}

namespace sortie::trainer::outer {

/// `block`: values that share a scale, even and at least 2; 32 is the fastest.
struct WireFormat {
  config::OuterWire wire;
  std::int64_t block = 32;
};

/// Of `values` values, with scales.
std::size_t encoded_bytes(const WireFormat& format, std::size_t values);

/// How the work is done; it has no influence on the bits of the result.
struct WireWork {
  int threads = 1;
  ops::Isa isa = ops::best_isa();
};

/// Rounds to nearest, ties to even; what is beyond the largest number of a format becomes that.
/// `out` has encoded_bytes() bytes. False: a value is NaN or infinite; `out` is then of no use.
[[nodiscard]] bool encode(const WireFormat& format, std::span<const float> values,
                          std::span<std::byte> out, const WireWork& work = {});

/// False: bytes that encode() does not write (a NaN, an infinity, a scale that leads to one);
/// `values` are then of no use.
[[nodiscard]] bool decode(const WireFormat& format, std::span<const std::byte> bytes,
                          std::span<float> values, const WireWork& work = {});

/// sum[i] += weight x value[i], product and sum rounded to f32 each. False as of decode().
[[nodiscard]] bool decode_add(const WireFormat& format, float weight,
                              std::span<const std::byte> bytes, std::span<float> sum,
                              const WireWork& work = {});

}  // namespace sortie::trainer::outer
