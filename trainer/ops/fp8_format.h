// The two formats of FP8. Includes no header of the project, so that kernels can include it.
#pragma once

#include <cstdint>

namespace sortie::trainer::ops {

/// Source: Micikevicius et al. 2022.
enum class Fp8Format : std::uint8_t {
  e4m3,  // 3 bits of mantissa, up to 448; no infinities
  e5m2,  // 2 bits of mantissa, up to 57344
};

/// FP8 products exist only for matrices whose rows and columns are multiples of this.
inline constexpr std::int64_t kFp8Unit = 16;

/// Number of steps whose largest values delayed scaling remembers.
inline constexpr std::int64_t kFp8History = 16;

}  // namespace sortie::trainer::ops
