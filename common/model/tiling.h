// The block sizes of the CPU's kernels that decide how much memory they work in. The kernels are
// made of them, and a plan counts with them.
#pragma once

#include <cstdint>

namespace sortie::model {

/// Rows of the head that the cross-entropy multiplies at a time; no power of two, as lines that
/// far apart would share cache sets.
inline constexpr std::int64_t kVocabularyTile = 1984;
/// Rows whose exponentials the cross-entropy keeps at a time.
inline constexpr std::int64_t kCrossEntropyRows = 1024;
/// Query rows that attention scores at a time.
inline constexpr std::int64_t kAttentionRows = 64;
/// Experts begin at multiples of this many rows; the rows between are zero. It keeps the number of
/// different products small.
inline constexpr std::int64_t kExpertRowUnit = 16;

}  // namespace sortie::model
