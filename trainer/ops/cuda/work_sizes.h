// Sizes of the scratch memory of a GPU's ops, as functions of shapes, for the ops and for planning
// memory without a GPU (ops/meta). Does not depend on CUDA.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sortie::trainer::ops::cuda {

/// Workspace of each stream that multiplies. NVIDIA recommends this size for Hopper; earlier GPUs
/// use less of it.
inline constexpr std::size_t kProductWorkspaceBytes = std::size_t{32} << 20;

/// Threads of a warp.
inline constexpr int kWarpLanes = 32;

constexpr std::int64_t pieces_of(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

/// Columns of logits that row kernels access together; lines are a multiple of it.
inline constexpr std::int64_t kHeadPack = 8;
/// Fewer columns than this are not split at multiples of kHeadPack.
inline constexpr std::int64_t kFewColumns = 64;
/// Elements between rows of `columns` logits.
constexpr std::int64_t head_line(std::int64_t columns) {
  return pieces_of(columns, kHeadPack) * kHeadPack;
}
/// Columns at the end that the gradient of the rows handles separately, added in f32.
constexpr std::int64_t head_rest(std::int64_t columns) {
  return columns < kFewColumns ? 0 : columns % kHeadPack;
}

/// About the number of blocks that occupies the multiprocessors of any GPU.
inline constexpr std::int64_t kEnoughBlocks = 256;
/// Number of groups of a key head's query heads in attention's backward pass: more than one if key
/// heads are too few to occupy the GPU with their blocks.
constexpr int gradient_splits(std::int64_t batch, std::int64_t keys, std::int64_t heads,
                              std::int64_t key_heads) {
  const std::int64_t blocks = pieces_of(keys, 64) * key_heads * batch;
  return static_cast<int>(std::clamp<std::int64_t>(kEnoughBlocks / blocks, 1,
                                                   std::max<std::int64_t>(heads / key_heads, 1)));
}

/// Rows per part of the column sums of `rows` rows, and the number of these parts.
constexpr std::int64_t rows_of_part(std::int64_t rows) {
  constexpr std::int64_t kRowsOfPart = 128, kMaxParts = 256;  // minimum; maximum
  return std::max(kRowsOfPart, pieces_of(rows, kMaxParts));
}
constexpr std::int64_t column_sum_parts(std::int64_t rows) {
  return pieces_of(rows, rows_of_part(rows));
}
/// Rows per part of a router's sums, in f64.
inline constexpr std::int64_t kRowsPerPart = 256;

/// The widest block of a norm's backward pass, which leaves 128 registers per thread.
inline constexpr int kMostThreads = 512;
/// Warps of a block in which each warp processes a row.
inline constexpr int kRowsAtATime = 4;
/// Columns per thread.
inline constexpr int kNormColumns = 16;

/// How rows are divided among blocks: a function of the shape alone, so that sums over rows have
/// the same bits on every GPU.
struct NormParts {
  std::int64_t rows_per_block = 0, blocks = 0;
};
/// Enough blocks to keep a large GPU's memory busy, few enough that their sums are a small part of
/// what is read. If the sums do not fit in registers, so few that they stay in the L2 cache.
constexpr NormParts norm_parts(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kThreads = 65536;
  std::int64_t most = 128, least_rows = 8;
  if (cols <= kNormColumns * kWarpLanes) {
    most = 2 * kThreads / (kWarpLanes * kRowsAtATime);  // short rows: less of each is in flight
    least_rows = 4 * kRowsAtATime;
  } else if (cols <= kNormColumns * kMostThreads) {
    most = kThreads / (pieces_of(cols, kNormColumns * kWarpLanes) * kWarpLanes);
  }
  NormParts parts;
  parts.rows_per_block = std::max(pieces_of(rows, most), least_rows);
  parts.blocks = pieces_of(rows, parts.rows_per_block);
  return parts;
}

/// Number of parts of the rows, in each of which one block finds the largest value. Every block of
/// a cast reads all of these values.
constexpr std::int64_t fp8_parts(std::int64_t rows) {
  constexpr std::int64_t kRowsOfTurn = 8, kMost = 256;
  return std::clamp<std::int64_t>(pieces_of(rows, kRowsOfTurn), 1, kMost);
}

/// Side of a cast's blocks, which are square.
inline constexpr std::int64_t kFp8Tile = 64;
constexpr std::int64_t fp8_tiles(std::int64_t rows, std::int64_t cols) {
  return pieces_of(rows, kFp8Tile) * pieces_of(cols, kFp8Tile);
}

/// Values that a block of a sum of squares adds at a time.
inline constexpr std::int64_t kSquaresOfTurn = 1024;
/// Number of parts of a sum of `count` squares; it depends on nothing else.
constexpr std::int64_t square_parts(std::int64_t count) {
  constexpr std::int64_t kMost = 1024;  // eight blocks on every multiprocessor of the largest GPUs
  return std::clamp<std::int64_t>(pieces_of(count, kSquaresOfTurn), 1, kMost);
}

/// Steps of a warp that counts choices of experts, with kWarpLanes choices each.
inline constexpr int kChoiceSteps = 16;
/// Warps of a counting block: 8 if the counters of all 8 for all experts fit in shared memory.
constexpr int choice_warps(std::int64_t experts) {
  return experts <= 1024 ? 8 : 1;
}
/// Number of chunks in each of `segments` equal parts of `count` choices.
constexpr std::int64_t choice_chunks(std::int64_t count, std::int64_t segments,
                                     std::int64_t experts) {
  return pieces_of(count / segments,
                   std::int64_t{choice_warps(experts)} * kChoiceSteps * kWarpLanes);
}
/// Number of counts of all chunks.
constexpr std::int64_t chunk_counts(std::int64_t count, std::int64_t segments,
                                    std::int64_t experts) {
  return choice_chunks(count, segments, experts) * segments * experts;
}

}  // namespace sortie::trainer::ops::cuda
