// The cosines of DeMo's transform and the values of its messages (demo.h), on plain values, so that
// the CPU and a GPU's kernels compute the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/host_device.h"
#include "trainer/random/portable_math.h"

namespace sortie::trainer::ops {

/// The orthonormal DCT-II of `size` values, 1 to kLongest: the factor of value n in frequency k is
/// sqrt((k ? 2 : 1) / size) cos(pi (2 n + 1) k / (2 size)). All follow from a quarter of a turn.
struct DemoCosines {
  static constexpr int kLongest = 64;

  float constant;           // of frequency 0
  float quarter[kLongest];  // [q] = sqrt(2 / size) cos(pi q / (2 size)), q < size

  /// The factor at `parts` = (2 n + 1) k modulo 4 size, k > 0: a turn has 4 size parts. `quarter`
  /// may be a copy of the array.
  SORTIE_HOST_DEVICE static float at(const float* quarter, int size, int parts) {
    const int half = parts > 2 * size ? 4 * size - parts : parts;  // cos(-x) = cos(x)
    const bool negative = half > size;                             // cos(pi - x) = -cos(x)
    const int of_quarter = negative ? 2 * size - half : half;
    const float value = of_quarter == size ? 0.0f : quarter[of_quarter];
    return negative ? -value : value;
  }
};

/// The cosines of sides of `size` values; the same bits on every CPU.
inline DemoCosines demo_cosines(int size) {
  DemoCosines cosines{};
  cosines.constant = static_cast<float>(std::sqrt(1.0 / size));
  const double scale = std::sqrt(2.0 / size);
  for (int q = 0; q < size; ++q)
    cosines.quarter[q] =
        static_cast<float>(scale * portable_cos_of_turns(static_cast<double>(q) / (4 * size)));
  return cosines;
}

SORTIE_HOST_DEVICE inline std::uint32_t demo_bits(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
SORTIE_HOST_DEVICE inline float demo_float(std::uint32_t bits) {
  float value = 0.0f;
  memcpy(&value, &bits, sizeof value);
  return value;
}
/// The bits of a value without its sign: ordered as magnitudes are, and NaN above all others.
SORTIE_HOST_DEVICE inline std::uint32_t demo_magnitude(float value) {
  return demo_bits(value) & 0x7fffffffu;
}

/// The scale of a block's message, and how it encodes coefficients.
struct DemoScale {
  std::uint32_t bits;  // of `value`; the lower 16 are 0
  float value;         // NaN if a coefficient is not finite
  bool none, broken;   // no coefficient is sent; all are sent as NaN

  /// The value that is sent of a coefficient; that times `value` is what members receive.
  SORTIE_HOST_DEVICE std::int8_t code(float coefficient) const {
    if (none || broken) return broken ? 1 : 0;
    return static_cast<std::int8_t>(nearbyintf(coefficient / value));
  }
};

/// The scale of a block whose largest magnitude has these bits.
SORTIE_HOST_DEVICE inline DemoScale demo_scale(std::uint32_t largest) {
  constexpr float kMostOfCode = 127.0f;
  // If all coefficients are smaller, nothing is sent: their scale could be flushed to 0.
  constexpr float kLeast = 1e-30f;
  const float most = demo_float(largest);
  DemoScale scale{};
  scale.none = most < kLeast;
  scale.broken = !std::isfinite(most);
  // Rounded up, so that no code exceeds 127.
  scale.bits = (demo_bits(most / kMostOfCode) + 0xffffu) & 0xffff0000u;
  if (scale.none) scale.bits = 0;
  if (scale.broken) scale.bits = 0x7fc00000u;
  scale.value = demo_float(scale.bits);
  return scale;
}

}  // namespace sortie::trainer::ops
