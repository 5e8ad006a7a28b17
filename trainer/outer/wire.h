// Wire formats: encodings of vectors of f32 for transfer between sites, with 4 to 32 bits per
// value.
//
// Layout: the codes of all values, then the scales. f32 and bf16 have no scales. int8 has an f32
// scale per block. E4M3, E5M2, E2M1 and E3M0 have an E8M0 scale per block (2^(byte - 127)), as in
// OCP's microscaling formats 1.0; E3M0, a sign and a power of two, is not one of these formats. A
// byte has two codes of 4 bits, low nibble first. The last block is padded with zeros.
// Little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trainer/ops/isa.h"

namespace sortie::config {
enum class OuterWire : std::uint8_t;
}

namespace sortie::trainer::outer {

/// `block` is the number of values that share a scale: even, at least 2; 32 is the fastest.
struct WireFormat {
  config::OuterWire wire;
  std::int64_t block = 32;
};

/// Size of `values` encoded values, with scales.
std::size_t encoded_bytes(const WireFormat& format, std::size_t values);

/// How the work is done. It does not change the bits of the result.
struct WireWork {
  int threads = 1;
  ops::Isa isa = ops::best_isa();
};

/// Rounds to nearest, ties to even. Values beyond the largest number of a format become that
/// number. `out` has encoded_bytes() bytes (checked). Returns false if a value is NaN or infinite;
/// `out` is then undefined.
[[nodiscard]] bool encode(const WireFormat& format, std::span<const float> values,
                          std::span<std::byte> out, const WireWork& work = {});

/// Returns false for bytes that encode() does not write (a NaN, an infinity, a scale that leads to
/// one); `values` are then undefined.
[[nodiscard]] bool decode(const WireFormat& format, std::span<const std::byte> bytes,
                          std::span<float> values, const WireWork& work = {});

/// sum[i] += weight x value[i], where product and sum are each rounded to f32. Returns false like
/// decode().
[[nodiscard]] bool decode_add(const WireFormat& format, float weight,
                              std::span<const std::byte> bytes, std::span<float> sum,
                              const WireWork& work = {});

}  // namespace sortie::trainer::outer
