// A block's tile of a matrix product a b^T, summed in f32: bf16 by tensor cores, f32 by plain
// multiplications. Included by .cu files.
#pragma once

#include "trainer/ops/cuda/tensor_core.h"

namespace sortie::trainer::ops::cuda {

/// One side of a product: [outer, depth], stored so or, where the tile says transposed, as [depth,
/// outer], in rows `stride` apart.
template <class T>
struct Operand {
  const T* data = nullptr;
  std::int64_t stride = 0;
  int outer = 0, depth = 0;
};

/// R x 32 elements of a bf16 operand in shared memory, in chunks of 16 bytes whose places in a row
/// depend on the row, so that ldmatrix meets every bank once.
template <int R, bool kTransposed, int kThreads, bool kAligned>
struct OperandTile {
  static constexpr int kDepth = 32;
  static constexpr int kBytes = R * kDepth * 2;
  static constexpr int kChunks = (kTransposed ? R : kDepth) / 8;  // of a row
  static constexpr int kRows = kTransposed ? kDepth : R;
  static constexpr int kRowsAtOnce = kThreads / kChunks;
  static_assert(kRowsAtOnce % 8 == 0 && kRows % kRowsAtOnce == 0);

  static __device__ __forceinline__ int offset(int row, int chunk) {
    const int turn = kChunks >= 8 ? row % 8 : row / 2 % 4;
    return (row * kChunks + (chunk ^ turn)) * 16;
  }

  /// What is outside of the operand becomes zero.
  static __device__ __forceinline__ void load(unsigned char* tile, const Operand<bf16>& x,
                                              int outer_begin, int depth_begin) {
    const int first_row = static_cast<int>(threadIdx.x) / kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int begin = offset(first_row, chunk);
    SORTIE_UNROLL
    for (int pass = 0; pass < kRows / kRowsAtOnce; ++pass) {
      const int row = first_row + pass * kRowsAtOnce;
      const int outer = outer_begin + (kTransposed ? chunk * 8 : row);
      const int depth = depth_begin + (kTransposed ? row : chunk * 8);
      const bf16* from =
          x.data + (kTransposed ? depth * x.stride + outer : outer * x.stride + depth);
      unsigned char* to = tile + begin + pass * kRowsAtOnce * kChunks * 16;
      if constexpr (kAligned) {
        cp_async_16(to, from, outer < x.outer && depth < x.depth);
      } else {
        Pack<bf16, 8> pack;
        for (int i = 0; i < 8; ++i) {
          const bool there = kTransposed ? outer + i < x.outer && depth < x.depth
                                         : outer < x.outer && depth + i < x.depth;
          pack.values[i] = there ? from[i] : from_float<bf16>(0.0f);
        }
        *reinterpret_cast<Pack<bf16, 8>*>(to) = pack;
      }
    }
  }

  /// Of the left side: rows outer ... + 15 and depth 16 slice ... + 15, as mma takes them.
  static __device__ __forceinline__ void left(std::uint32_t (&a)[4], const unsigned char* tile,
                                              int outer, int slice) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if constexpr (kTransposed)
      ldmatrix_x4_trans(
          a, tile + offset(16 * slice + lane % 8 + lane / 16 * 8, outer / 8 + lane / 8 % 2));
    else
      ldmatrix_x4(a, tile + offset(outer + lane % 16, 2 * slice + lane / 16));
  }
  /// Of the right side: the same as two fragments of 8 columns, b[0], b[1] and b[2], b[3].
  static __device__ __forceinline__ void right(std::uint32_t (&b)[4], const unsigned char* tile,
                                               int outer, int slice) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if constexpr (kTransposed)
      ldmatrix_x4_trans(b, tile + offset(16 * slice + lane % 16, outer / 8 + lane / 16));
    else
      ldmatrix_x4(b, tile + offset(outer + lane % 8 + lane / 16 * 8, 2 * slice + lane / 8 % 2));
  }
};

/// M x N elements by kWarpsM x kWarpsN warps. kAligned: addresses and strides of both operands are
/// multiples of 16 bytes, and so are the sizes of the dimension that is dense.
template <int M, int N, int kWarpsM, int kWarpsN, bool kTransposedA, bool kTransposedB,
          bool kAligned>
struct Bf16Tile {
  using Element = bf16;
  static constexpr int kM = M, kN = N, kThreads = kWarpsM * kWarpsN * kWarp;
  using A = OperandTile<M, kTransposedA, kThreads, kAligned>;
  using B = OperandTile<N, kTransposedB, kThreads, kAligned>;
  /// Copies of two stages are under way while the third is multiplied.
  static constexpr int kStages = 3, kDepth = 32;
  static constexpr int kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kRowsM = M / kWarpsM, kColsN = N / kWarpsN;  // of a warp
  struct Sums {
    float values[kRowsM / 16][kColsN / 8][4];
  };

  static __device__ __forceinline__ int warp_row() {
    return static_cast<int>(threadIdx.x) / kWarp / kWarpsN * kRowsM;
  }
  static __device__ __forceinline__ int warp_col() {
    return static_cast<int>(threadIdx.x) / kWarp % kWarpsN * kColsN;
  }

  /// sums = the tile whose first element is (row, col). `shared`: kBytes, free before and after.
  static __device__ __forceinline__ void multiply(unsigned char* shared, const Operand<bf16>& a,
                                                  const Operand<bf16>& b, int row, int col,
                                                  Sums& sums) {
    SORTIE_UNROLL
    for (int i = 0; i < kRowsM / 16; ++i) {
      SORTIE_UNROLL
      for (int j = 0; j < kColsN / 8; ++j) {
        SORTIE_UNROLL
        for (int e = 0; e < 4; ++e) sums.values[i][j][e] = 0.0f;
      }
    }
    const int steps = (a.depth + kDepth - 1) / kDepth;
    const auto load = [&](int step, int stage) {
      if (step < steps) {
        unsigned char* tile = shared + stage * kStageBytes;
        A::load(tile, a, row, step * kDepth);
        B::load(tile + A::kBytes, b, col, step * kDepth);
      }
      cp_async_commit();
    };
    SORTIE_UNROLL
    for (int stage = 0; stage < kStages - 1; ++stage) load(stage, stage);
    for (int step = 0, stage = 0, next = kStages - 1; step < steps; ++step) {
      cp_async_wait<kStages - 2>();
      __syncthreads();  // the stage is there, and all have left the one before it
      load(step + kStages - 1, next);
      const unsigned char* tile = shared + stage * kStageBytes;
      SORTIE_UNROLL
      for (int slice = 0; slice < kDepth / 16; ++slice) multiply_slice(tile, slice, sums);
      stage = stage + 1 < kStages ? stage + 1 : 0;
      next = next + 1 < kStages ? next + 1 : 0;
    }
    cp_async_wait<0>();
    __syncthreads();
  }

  /// visit(row, col, sum, sum at col + 1) for this thread's elements, in the tile.
  template <class Visit>
  static __device__ __forceinline__ void for_each_pair(const Sums& sums, const Visit& visit) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    SORTIE_UNROLL
    for (int i = 0; i < kRowsM / 16; ++i) {
      SORTIE_UNROLL
      for (int j = 0; j < kColsN / 8; ++j) {
        const int row = warp_row() + 16 * i + lane / 4, col = warp_col() + 8 * j + lane % 4 * 2;
        visit(row, col, sums.values[i][j][0], sums.values[i][j][1]);
        visit(row + 8, col, sums.values[i][j][2], sums.values[i][j][3]);
      }
    }
  }

 private:
  static __device__ __forceinline__ void multiply_slice(const unsigned char* tile, int slice,
                                                        Sums& sums) {
    std::uint32_t a[kRowsM / 16][4];
    SORTIE_UNROLL
    for (int i = 0; i < kRowsM / 16; ++i) A::left(a[i], tile, warp_row() + 16 * i, slice);
    SORTIE_UNROLL
    for (int j = 0; j < kColsN / 16; ++j) {
      std::uint32_t b[4];
      B::right(b, tile + A::kBytes, warp_col() + 16 * j, slice);
      const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
      SORTIE_UNROLL
      for (int i = 0; i < kRowsM / 16; ++i) {
        mma_bf16(sums.values[i][2 * j], a[i], low);
        mma_bf16(sums.values[i][2 * j + 1], a[i], high);
      }
    }
  }
};

/// 64 x 64 elements of f32, 4 x 4 per thread.
template <bool kTransposedA, bool kTransposedB>
struct F32Tile {
  using Element = float;
  static constexpr int kM = 64, kN = 64, kThreads = 256, kDepth = 16;
  static constexpr int kRow = 64 + 4;  // of one depth, in shared memory
  static constexpr int kBytes = 2 * kDepth * kRow * 4;
  struct Sums {
    float values[4][4];
  };

  /// As Bf16Tile.
  static __device__ __forceinline__ void multiply(unsigned char* shared, const Operand<float>& a,
                                                  const Operand<float>& b, int row, int col,
                                                  Sums& sums) {
    auto* left = reinterpret_cast<float*>(shared);
    float* right = left + kDepth * kRow;
    SORTIE_UNROLL
    for (int i = 0; i < 16; ++i) sums.values[i / 4][i % 4] = 0.0f;
    for (int depth = 0; depth < a.depth; depth += kDepth) {
      load<kTransposedA>(left, a, row, depth);
      load<kTransposedB>(right, b, col, depth);
      __syncthreads();
      SORTIE_UNROLL
      for (int d = 0; d < kDepth; ++d) {
        const auto x = *reinterpret_cast<const Pack<float, 4>*>(left + d * kRow + tile_row());
        const auto y = *reinterpret_cast<const Pack<float, 4>*>(right + d * kRow + tile_col());
        SORTIE_UNROLL
        for (int i = 0; i < 16; ++i) sums.values[i / 4][i % 4] += x.values[i / 4] * y.values[i % 4];
      }
      __syncthreads();
    }
  }
  template <class Visit>
  static __device__ __forceinline__ void for_each_pair(const Sums& sums, const Visit& visit) {
    SORTIE_UNROLL
    for (int i = 0; i < 4; ++i) {
      visit(tile_row() + i, tile_col(), sums.values[i][0], sums.values[i][1]);
      visit(tile_row() + i, tile_col() + 2, sums.values[i][2], sums.values[i][3]);
    }
  }

 private:
  static __device__ __forceinline__ int tile_row() {
    return static_cast<int>(threadIdx.x) / 16 * 4;
  }
  static __device__ __forceinline__ int tile_col() {
    return static_cast<int>(threadIdx.x) % 16 * 4;
  }
  template <bool kTransposed>
  static __device__ __forceinline__ void load(float* tile, const Operand<float>& x, int outer_begin,
                                              int depth_begin) {
    SORTIE_UNROLL
    for (int pass = 0; pass < 64 * kDepth / kThreads; ++pass) {
      const int i = static_cast<int>(threadIdx.x) + pass * kThreads;
      const int at_outer = kTransposed ? i % 64 : i / kDepth;
      const int at_depth = kTransposed ? i / 64 : i % kDepth;
      const int outer = outer_begin + at_outer, depth = depth_begin + at_depth;
      const bool there = outer < x.outer && depth < x.depth;
      const std::int64_t from = kTransposed ? depth * x.stride + outer : outer * x.stride + depth;
      tile[at_depth * kRow + at_outer] = there ? x.data[from] : 0.0f;
    }
  }
};

}  // namespace sortie::trainer::ops::cuda
