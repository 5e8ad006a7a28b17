// Kernels of the wires (wire.h) for each instruction set; all give the same bits.
#pragma once

#include <cstdint>

#include "trainer/ops/isa.h"

namespace sortie::trainer::outer {

/// Of one wire. `n` values in blocks of `block`, of which the last may be short; `payload` and
/// `scales` begin with the first block. All return false where they meet a value that is not
/// finite, or bytes that no encoder writes; what they have written is then of no use.
struct WireKernels {
  bool (*encode)(const float* values, std::int64_t n, std::int64_t block, std::uint8_t* payload,
                 std::uint8_t* scales);
  /// values = the decoded ones; the weight has no part in it.
  bool (*decode)(float weight, const std::uint8_t* payload, const std::uint8_t* scales,
                 std::int64_t n, std::int64_t block, float* values);
  /// values += weight x decoded; product and sum are rounded each.
  bool (*decode_add)(float weight, const std::uint8_t* payload, const std::uint8_t* scales,
                     std::int64_t n, std::int64_t block, float* values);
};

struct WireTable {
  WireKernels f32, bf16, int8, e4m3, e5m2, e2m1, e3m0;
};

/// For a set that this CPU has.
const WireTable& wire_table(ops::Isa isa);

}  // namespace sortie::trainer::outer
