// Shared by the kernels of attention: which keys a query sees, tiles in shared memory, and their
// fragments. Included by attention's .cu files.
#pragma once

#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/tensor_core.h"

namespace sortie::trainer::ops::cuda {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kInfinity = __builtin_huge_valf();

/// `count` keys from `first` on, numbered within the keys of the call.
struct KeySpan {
  int first, count;
  __device__ __forceinline__ bool has(int key) const {
    return static_cast<unsigned>(key - first) < static_cast<unsigned>(count);
  }
  __device__ __forceinline__ int end() const { return first + count; }
};

/// The keys that the query at `token` of the call sees if its document begins at `start`.
__device__ __forceinline__ KeySpan seen_keys(const KeyMask& mask, int keys, int token, int start) {
  const int place = mask.first_query + token;
  const int oldest = place - mask.window + 1;
  const int first = max(max(oldest, start) - mask.first_key, 0);
  const int end = min(place - mask.first_key + 1, keys);
  return {first, max(end - first, 0)};
}
__device__ __forceinline__ int document_start(const KeyMask& mask, std::int64_t b, int token) {
  return mask.starts == nullptr ? 0 : mask.starts[b * mask.starts_stride + token];
}

/// The range of keys that any of some rows sees, and the range that all of them see.
struct SeenByAll {
  int first = 0x7fffffff, end = 0;          // of any row
  int all_first = 0, all_end = 0x7fffffff;  // of every row
  __device__ __forceinline__ void add(KeySpan span) {
    if (span.count == 0) {  // such a row needs a mask everywhere
      all_end = 0;
      return;
    }
    first = min(first, span.first);
    end = max(end, span.end());
    all_first = max(all_first, span.first);
    all_end = min(all_end, span.end());
  }
  __device__ __forceinline__ void add(const SeenByAll& other) {
    first = min(first, other.first);
    end = max(end, other.end);
    all_first = max(all_first, other.all_first);
    all_end = min(all_end, other.all_end);
  }
  __device__ __forceinline__ bool any(int begin, int past) const {
    return begin < end && past > first;
  }
  __device__ __forceinline__ bool all(int begin, int past) const {
    return begin >= all_first && past <= all_end;
  }
};
__device__ __forceinline__ SeenByAll over_warp(SeenByAll mine) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    mine.add(SeenByAll{__shfl_xor_sync(kAllLanes, mine.first, lane),
                       __shfl_xor_sync(kAllLanes, mine.end, lane),
                       __shfl_xor_sync(kAllLanes, mine.all_first, lane),
                       __shfl_xor_sync(kAllLanes, mine.all_end, lane)});
  return mine;
}
/// Combines the results of a block's warps; `scratch` is shared memory for one per warp.
__device__ __forceinline__ SeenByAll over_block(SeenByAll of_warp, SeenByAll* scratch) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  SeenByAll all = scratch[0];
  for (int warp = 1; warp < warps; ++warp) all.add(scratch[warp]);
  __syncthreads();
  return all;
}

/// What the queries of [first, past) see if there is only one document.
__device__ __forceinline__ SeenByAll seen_by_rows(const KeyMask& mask, int keys, int first,
                                                  int past) {
  SeenByAll seen;
  if (first >= past) return seen;
  const KeySpan oldest = seen_keys(mask, keys, first, 0),
                newest = seen_keys(mask, keys, past - 1, 0);
  if (newest.count > 0) {
    seen.first = oldest.first;
    seen.end = newest.end();
  }
  seen.all_first = newest.first;
  seen.all_end = oldest.count > 0 && newest.count > 0 ? oldest.end() : 0;
  return seen;
}

/// Rows of bf16 in shared memory. They are a piece of 16 bytes longer than their columns, so that
/// eight rows of one column of pieces are in different banks.
template <int kColumns>
struct Tile {
  static constexpr int kStride = kColumns + 8;
  static_assert(kColumns % 16 == 0 && kStride * 2 / 16 % 2 == 1, "rows on the same banks");
  __host__ __device__ static constexpr int elements(int rows) { return rows * kStride; }
};

/// Starts to load rows of `source(row)`, a pointer or nullptr, into a tile. Columns from `columns`
/// on and rows without a source are filled with zeros. Rows that are in pieces of 16 bytes are
/// complete after a wait and the next barrier, others after the barrier alone. `somewhere` is any
/// readable address.
template <int kRows, int kColumns, int kThreads, class Source>
__device__ __forceinline__ void load_tile(bf16* tile, int columns, bool in_pieces,
                                          const bf16* somewhere, const Source& source) {
  constexpr int kPieces = kColumns / 8;
  const auto thread = static_cast<int>(threadIdx.x);
  if (!in_pieces) {
    for (int i = thread; i < kRows * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns;
      const bf16* from = source(row);
      bf16 value;
      value.bits = from != nullptr && column < columns ? from[column].bits : std::uint16_t{0};
      tile[row * Tile<kColumns>::kStride + column] = value;
    }
    return;
  }
  const auto copy = [&](int row, int column) {
    const bf16* from = source(row);
    const bool valid = from != nullptr && column < columns;
    cp_async_16(tile + row * Tile<kColumns>::kStride + column, valid ? from + column : somewhere,
                valid);
  };
  if constexpr (kThreads % kPieces == 0) {
    constexpr int kStep = kThreads / kPieces;
    const int column = thread % kPieces * 8;
#pragma unroll 2
    for (int row = thread / kPieces; row < kRows; row += kStep) copy(row, column);
  } else {
#pragma unroll 4
    for (int i = thread; i < kRows * kPieces; i += kThreads) copy(i / kPieces, i % kPieces * 8);
  }
}

/// Loads the fragment a of 16 rows from `row` on and the 16 columns from `column` on.
template <int kColumns>
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], const bf16* tile, int row,
                                       int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  ldmatrix_x4(a, tile + (row + lane % 16) * Tile<kColumns>::kStride + column + lane / 16 * 8);
}
/// Loads two fragments b: k = the 16 columns from `column` on, n = the 8 rows from `row` on and the
/// 8 after them. The tile is the right side of a product, transposed.
template <int kColumns>
__device__ __forceinline__ void load_b_transposed(std::uint32_t (&b)[2][2], const bf16* tile,
                                                  int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::uint32_t registers[4];
  ldmatrix_x4(registers, tile + (row + lane / 16 * 8 + lane % 8) * Tile<kColumns>::kStride +
                             column + lane / 8 % 2 * 8);
  b[0][0] = registers[0], b[0][1] = registers[1];
  b[1][0] = registers[2], b[1][1] = registers[3];
}
/// Loads two fragments b: k = the 16 rows from `row` on, n = the 8 columns from `column` on and the
/// 8 after them.
template <int kColumns>
__device__ __forceinline__ void load_b(std::uint32_t (&b)[2][2], const bf16* tile, int row,
                                       int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::uint32_t registers[4];
  ldmatrix_x4_trans(registers, tile +
                                   (row + lane / 8 % 2 * 8 + lane % 8) * Tile<kColumns>::kStride +
                                   column + lane / 16 * 8);
  b[0][0] = registers[0], b[0][1] = registers[1];
  b[1][0] = registers[2], b[1][1] = registers[3];
}

/// s += a b^T: 16 kM rows of `a` from `row` on times all kRows rows of `b`, over kColumns.
template <int kM, int kRows, int kColumns>
__device__ __forceinline__ void multiply_transposed(float (&s)[kM][kRows / 8][4], const bf16* a,
                                                    int row, const bf16* b) {
#pragma unroll
  for (int k = 0; k < kColumns; k += 16) {
    std::uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_a<kColumns>(left[m], a, row + 16 * m, k);
#pragma unroll
    for (int n = 0; n < kRows; n += 16) {
      std::uint32_t right[2][2];
      load_b_transposed<kColumns>(right, b, n, k);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_bf16(s[m][n / 8], left[m], right[0]);
        mma_bf16(s[m][n / 8 + 1], left[m], right[1]);
      }
    }
  }
}

/// c += p b. p holds the sums of a product in registers and is rounded to bf16; its columns are the
/// kRows rows of b.
template <int kM, int kRows, int kColumns>
__device__ __forceinline__ void multiply_registers(float (&c)[kM][kColumns / 8][4],
                                                   const float (&p)[kM][kRows / 8][4],
                                                   const bf16* b) {
#pragma unroll
  for (int k = 0; k < kRows; k += 16) {
    std::uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const auto& low = p[m][k / 8];
      const auto& high = p[m][k / 8 + 1];
      left[m][0] = pack_bf16(low[0], low[1]);
      left[m][1] = pack_bf16(low[2], low[3]);
      left[m][2] = pack_bf16(high[0], high[1]);
      left[m][3] = pack_bf16(high[2], high[3]);
    }
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      std::uint32_t right[2][2];
      load_b<kColumns>(right, b, k, n);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_bf16(c[m][n / 8], left[m], right[0]);
        mma_bf16(c[m][n / 8 + 1], left[m], right[1]);
      }
    }
  }
}

template <int kM, int kN>
__device__ __forceinline__ void clear(float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
}

/// Writes two neighbouring elements of a row of `columns`; `column` is even. `in_pieces`: rows are
/// aligned, and columns a multiple of 8.
template <class T>
__device__ __forceinline__ void store_pair(T* row, int column, int columns, bool in_pieces,
                                           float low, float high) {
  if (column >= columns) return;
  if (in_pieces) {
    *reinterpret_cast<Pack<T, 2>*>(row + column) = {from_float<T>(low), from_float<T>(high)};
    return;
  }
  row[column] = from_float<T>(low);
  if (column + 1 < columns) row[column + 1] = from_float<T>(high);
}

/// Calls body.operator()<kD, kDv>() with compiled head sizes that hold `dims` and `value_dims`,
/// which are at most 256.
template <class Body>
void with_head_sizes(int dims, int value_dims, const Body& body) {
  const int most = dims > value_dims ? dims : value_dims;
  if (most <= 32) return body.template operator()<32, 32>();
  if (most <= 64) return body.template operator()<64, 64>();
  if (most <= 96) return body.template operator()<96, 96>();
  if (most <= 128) return body.template operator()<128, 128>();
  if (most <= 192 && value_dims <= 128) return body.template operator()<192, 128>();
  if (most <= 192) return body.template operator()<192, 192>();
  return body.template operator()<256, 256>();
}

}  // namespace sortie::trainer::ops::cuda
