// Block sizes of the CPU's kernels that determine how much scratch memory they need.
#pragma once

#include <cstdint>

namespace sortie::trainer::ops {

/// Rows of the head's weight that the cross-entropy multiplies at a time. Not a power of two,
/// because rows of logits at such a distance would share cache sets.
inline constexpr std::int64_t kVocabularyTile = 1984;
/// Rows of h whose exponentials the cross-entropy keeps at a time.
inline constexpr std::int64_t kCrossEntropyRows = 1024;
/// Query rows per tile of attention if these rows see at most kAttentionKeys keys...
inline constexpr std::int64_t kAttentionRows = 64;
inline constexpr std::int64_t kAttentionKeys = 1024;
/// ... and the tile size for longer sequences.
inline constexpr std::int64_t kLongAttentionRows = 256;
inline constexpr std::int64_t kLongAttentionKeys = 512;

/// How the scores [T, T] of a head are split into tiles. A thread has the scores of one tile at a
/// time.
struct AttentionTiling {
  std::int64_t rows;  // of a tile
  std::int64_t keys;  // of a tile, at most
  bool one_tile;      // a block of rows sees all its keys in one tile
};
inline constexpr AttentionTiling kLongTiling = {kLongAttentionRows, kLongAttentionKeys, false};
/// `window` 0 = all earlier tokens.
constexpr AttentionTiling attention_tiling(std::int64_t tokens, std::int64_t window) {
  const std::int64_t widest =
      window > 0 && window - 1 + kAttentionRows < tokens ? window - 1 + kAttentionRows : tokens;
  if (widest <= kAttentionKeys) return {kAttentionRows, widest, true};
  return kLongTiling;
}
/// Elements between two rows of a tile of `keys` columns.
constexpr std::int64_t attention_line(std::int64_t keys) {
  constexpr std::int64_t kVector = 32, kPage = 256;
  const std::int64_t line = (keys + kVector - 1) / kVector * kVector;
  return line % kPage == 0 ? line + kVector : line;  // avoids powers of two
}

}  // namespace sortie::trainer::ops
