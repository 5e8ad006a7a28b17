// What ops of a GPU work in beside their tensors: sizes as functions of shapes, for the ops and for
// those who plan memory without a GPU (ops/meta). Needs nothing of CUDA.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sortie::trainer::ops::cuda {

/// Of each stream that multiplies. As NVIDIA advises for Hopper; earlier GPUs use less of it.
inline constexpr std::size_t kProductWorkspaceBytes = std::size_t{32} << 20;

/// Threads that run together.
inline constexpr int kWarpLanes = 32;

constexpr std::int64_t pieces_of(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

/// Columns of logits that row kernels read and write together: lines are a multiple of it.
inline constexpr std::int64_t kHeadPack = 8;
/// Fewer columns are not cut to multiples of kHeadPack.
inline constexpr std::int64_t kFewColumns = 64;
/// Elements between rows of logits with so many columns.
constexpr std::int64_t head_line(std::int64_t columns) {
  return pieces_of(columns, kHeadPack) * kHeadPack;
}
/// Columns at the end that the gradient of the rows takes by themselves, added in f32.
constexpr std::int64_t head_rest(std::int64_t columns) {
  return columns < kFewColumns ? 0 : columns % kHeadPack;
}

/// Blocks that are enough for the multiprocessors of any GPU, about.
inline constexpr std::int64_t kEnoughBlocks = 256;
/// Into how many groups the query heads of a key head go in attention's backward pass: more than
/// one where key heads are too few to make blocks of.
constexpr int gradient_splits(std::int64_t batch, std::int64_t keys, std::int64_t heads,
                              std::int64_t key_heads) {
  const std::int64_t blocks = pieces_of(keys, 64) * key_heads * batch;
  return static_cast<int>(std::clamp<std::int64_t>(kEnoughBlocks / blocks, 1,
                                                   std::max<std::int64_t>(heads / key_heads, 1)));
}

/// Rows of the parts that column sums of so many rows are cut into, and how many these are.
constexpr std::int64_t rows_of_part(std::int64_t rows) {
  constexpr std::int64_t kRowsOfPart = 128, kMaxParts = 256;  // at least; at most
  return std::max(kRowsOfPart, pieces_of(rows, kMaxParts));
}
constexpr std::int64_t column_sum_parts(std::int64_t rows) {
  return pieces_of(rows, rows_of_part(rows));
}
/// The same of a router's sums, in f64.
inline constexpr std::int64_t kRowsPerPart = 256;

/// The widest block of a norm's backward pass; its threads then have 128 registers.
inline constexpr int kMostThreads = 512;
/// Warps of a block in which each warp has a row.
inline constexpr int kRowsAtATime = 4;
/// Columns of a thread.
inline constexpr int kNormColumns = 16;

/// How rows are shared out among blocks: a function of the shape alone, so that sums over rows
/// have the same bits on every GPU.
struct NormParts {
  std::int64_t rows_per_block = 0, blocks = 0;
};
/// Enough blocks to keep a large GPU's memory busy, few enough that their sums are a small part of
/// what is read; where the sums do not stay in registers, so few that they stay in the L2 cache.
constexpr NormParts norm_parts(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kThreads = 65536;
  std::int64_t most = 128, least_rows = 8;
  if (cols <= kNormColumns * kWarpLanes) {
    most = 2 * kThreads / (kWarpLanes * kRowsAtATime);  // short rows: less of each is on its way
    least_rows = 4 * kRowsAtATime;
  } else if (cols <= kNormColumns * kMostThreads) {
    most = kThreads / (pieces_of(cols, kNormColumns * kWarpLanes) * kWarpLanes);
  }
  NormParts parts;
  parts.rows_per_block = std::max(pieces_of(rows, most), least_rows);
  parts.blocks = pieces_of(rows, parts.rows_per_block);
  return parts;
}

/// Parts that the largest value of so many rows is found in, a block each. Every block of a cast
/// reads all of them.
constexpr std::int64_t fp8_parts(std::int64_t rows) {
  constexpr std::int64_t kRowsOfTurn = 8, kMost = 256;
  return std::clamp<std::int64_t>(pieces_of(rows, kRowsOfTurn), 1, kMost);
}

/// Blocks of a cast, which are square.
inline constexpr std::int64_t kFp8Tile = 64;
constexpr std::int64_t fp8_tiles(std::int64_t rows, std::int64_t cols) {
  return pieces_of(rows, kFp8Tile) * pieces_of(cols, kFp8Tile);
}

/// Values that a block of a sum of squares adds up at a time.
inline constexpr std::int64_t kSquaresOfTurn = 1024;
/// How many parts a sum of so many squares is taken in; it depends on nothing else.
constexpr std::int64_t square_parts(std::int64_t count) {
  constexpr std::int64_t kMost = 1024;  // eight blocks on every multiprocessor of the largest GPUs
  return std::clamp<std::int64_t>(pieces_of(count, kSquaresOfTurn), 1, kMost);
}

/// Choices of experts are counted warp by warp, each so many at a time.
inline constexpr int kChoiceSteps = 16;
/// Where a warp's counters for all experts still fit beside those of seven others.
constexpr int choice_warps(std::int64_t experts) {
  return experts <= 1024 ? 8 : 1;
}
/// Chunks of each of `segments` equal parts of `count` choices.
constexpr std::int64_t choice_chunks(std::int64_t count, std::int64_t segments,
                                     std::int64_t experts) {
  return pieces_of(count / segments,
                   std::int64_t{choice_warps(experts)} * kChoiceSteps * kWarpLanes);
}
/// The counts of all chunks are so many numbers.
constexpr std::int64_t chunk_counts(std::int64_t count, std::int64_t segments,
                                    std::int64_t experts) {
  return choice_chunks(count, segments, experts) * segments * experts;
}

}  // namespace sortie::trainer::ops::cuda
