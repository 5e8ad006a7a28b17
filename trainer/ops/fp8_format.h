// The two formats of FP8. Needs nothing: kernels include it, too.
#pragma once

#include <cstdint>

namespace sortie::trainer::ops {

/// Source: Micikevicius et al. 2022.
enum class Fp8Format : std::uint8_t {
  e4m3,  // 3 bits of mantissa, up to 448; no infinities
  e5m2,  // 2 bits of mantissa, up to 57344
};

/// Rows and columns of matrices of which there are products in FP8 are multiples of this.
inline constexpr std::int64_t kFp8Unit = 16;

/// Of how many steps delayed scaling knows the largest values.
inline constexpr std::int64_t kFp8History = 16;

}  // namespace sortie::trainer::ops
