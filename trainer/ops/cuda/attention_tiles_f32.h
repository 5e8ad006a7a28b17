// Shared by the f32 kernels of attention: tiles of 32 rows, whose scores are computed by 16 x 16
// threads, 2 x 2 each. Included by attention's .cu files.
#pragma once

#include "trainer/ops/cuda/attention_tiles.h"

namespace sortie::trainer::ops::cuda {

inline constexpr int kF32Rows = 32;
inline constexpr int kF32Side = 16;
inline constexpr int kF32Threads = kF32Side * kF32Side;

/// Rows of f32, four longer than their columns, so that 16 bytes of eight neighbouring rows are in
/// different banks.
template <int kColumns>
struct TileF32 {
  static constexpr int kStride = kColumns + 4;
  static constexpr int kElements = kF32Rows * kStride;
};
/// Scores as the left side of a product.
inline constexpr int kScoresStride = kF32Rows + 1;
inline constexpr int kScoresElements = kF32Rows * kScoresStride;

/// Like load_tile(), but complete for all threads on return. No thread may still read the tile at
/// the call.
template <int kColumns, class Source>
__device__ __forceinline__ void load_tile_f32(float* tile, int columns, bool in_pieces,
                                              const float* somewhere, const Source& source) {
  constexpr int kStride = TileF32<kColumns>::kStride;
  const auto thread = static_cast<int>(threadIdx.x);
  if (in_pieces) {
    constexpr int kPieces = kColumns / 4;
    for (int i = thread; i < kF32Rows * kPieces; i += kF32Threads) {
      const int row = i / kPieces, column = i % kPieces * 4;
      const float* from = source(row);
      const bool valid = from != nullptr && column < columns;
      cp_async_16(tile + row * kStride + column, valid ? from + column : somewhere, valid);
    }
  } else {
    for (int i = thread; i < kF32Rows * kColumns; i += kF32Threads) {
      const int row = i / kColumns, column = i % kColumns;
      const float* from = source(row);
      tile[row * kStride + column] = from != nullptr && column < columns ? from[column] : 0.0f;
    }
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

/// s[i][j] = row 2y + i of a times row x + 16 j of b, for thread (x, y).
template <int kColumns>
__device__ __forceinline__ void multiply_rows(float (&s)[2][2], const float* a, const float* b) {
  constexpr int kStride = TileF32<kColumns>::kStride;
  const int x = static_cast<int>(threadIdx.x) % kF32Side,
            y = static_cast<int>(threadIdx.x) / kF32Side;
  using Four = Pack<float, 4>;
  s[0][0] = s[0][1] = s[1][0] = s[1][1] = 0.0f;
#pragma unroll 4
  for (int d = 0; d < kColumns; d += 4) {
    Four left[2], right[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      left[i] = *reinterpret_cast<const Four*>(a + (2 * y + i) * kStride + d);
      right[i] = *reinterpret_cast<const Four*>(b + (x + kF32Side * i) * kStride + d);
    }
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) s[i][j] = fmaf(left[i].values[e], right[j].values[e], s[i][j]);
  }
}

/// Writes the thread's scores to shared memory, where all threads can read them.
__device__ __forceinline__ void share_scores(float* scores, const float (&s)[2][2]) {
  const int x = static_cast<int>(threadIdx.x) % kF32Side,
            y = static_cast<int>(threadIdx.x) / kF32Side;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) scores[(2 * y + i) * kScoresStride + x + kF32Side * j] = s[i][j];
}

/// c[i] += row 2y + i of the scores times the tile. The thread has the pairs of columns 2x + 32 n
/// and the next.
template <int kColumns>
__device__ __forceinline__ void add_product(float (&c)[2][kColumns / kF32Side], const float* scores,
                                            const float* tile) {
  constexpr int kStride = TileF32<kColumns>::kStride;
  const int x = static_cast<int>(threadIdx.x) % kF32Side,
            y = static_cast<int>(threadIdx.x) / kF32Side;
  for (int k = 0; k < kF32Rows; ++k) {
    const float low = scores[2 * y * kScoresStride + k],
                high = scores[(2 * y + 1) * kScoresStride + k];
#pragma unroll
    for (int n = 0; n < kColumns / kF32Side; n += 2) {
      const auto two =
          *reinterpret_cast<const Pack<float, 2>*>(tile + k * kStride + 2 * x + kF32Side * n);
      for (int e = 0; e < 2; ++e) {
        c[0][n + e] = fmaf(low, two.values[e], c[0][n + e]);
        c[1][n + e] = fmaf(high, two.values[e], c[1][n + e]);
      }
    }
  }
}

/// Calls body.operator()<kColumns>() with a width that holds both head sizes, which are at most
/// 256.
template <class Body>
void with_head_size_f32(int dims, int value_dims, const Body& body) {
  const int most = dims > value_dims ? dims : value_dims;
  if (most <= 32) return body.template operator()<32>();
  if (most <= 64) return body.template operator()<64>();
  if (most <= 128) return body.template operator()<128>();
  return body.template operator()<256>();
}

}  // namespace sortie::trainer::ops::cuda
