// Kernels of the wire formats (wire.h) for each instruction set; all give the same bits.
#pragma once

#include <cstdint>

#include "trainer/ops/isa.h"

namespace sortie::trainer::outer {

/// Kernels of one wire format, for `n` values in blocks of `block`; the last block may be short.
/// `payload` and `scales` begin with the first block. All return false for a value that is not
/// finite, or for bytes that no encoder writes; their output is then undefined.
struct WireKernels {
  bool (*encode)(const float* values, std::int64_t n, std::int64_t block, std::uint8_t* payload,
                 std::uint8_t* scales);
  /// values = decoded; `weight` is ignored.
  bool (*decode)(float weight, const std::uint8_t* payload, const std::uint8_t* scales,
                 std::int64_t n, std::int64_t block, float* values);
  /// values += weight x decoded; product and sum are each rounded.
  bool (*decode_add)(float weight, const std::uint8_t* payload, const std::uint8_t* scales,
                     std::int64_t n, std::int64_t block, float* values);
};

struct WireTable {
  WireKernels f32, bf16, int8, e4m3, e5m2, e2m1, e3m0;
};

/// The kernels for an instruction set that this CPU has (checked).
const WireTable& wire_table(ops::Isa isa);

}  // namespace sortie::trainer::outer
