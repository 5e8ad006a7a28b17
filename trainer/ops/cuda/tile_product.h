// A block's tile of a matrix product a b^T, summed in f32: bf16 by tensor cores, f32 by plain
// multiplications. Included by .cu files.
#pragma once

#include "trainer/ops/cuda/tensor_core.h"

namespace sortie::trainer::ops::cuda {

/// One side of a product: [outer, depth], or stored as [depth, outer] if the tile says transposed.
/// Rows are `stride` elements apart.
template <class T>
struct Operand {
  const T* data = nullptr;
  std::int64_t stride = 0;
  int outer = 0, depth = 0;
};

/// R x 32 elements of a bf16 operand in shared memory, in chunks of 16 bytes. The position of a
/// chunk in its row depends on the row, so that ldmatrix accesses every bank once. A warp
/// multiplies kWarpOuter of R.
template <int R, int kWarpOuter, bool kTransposed, int kThreads, bool kAligned>
struct OperandTile {
  static constexpr int kDepth = 32;
  static constexpr int kBytes = R * kDepth * 2;
  static constexpr int kChunks = (kTransposed ? R : kDepth) / 8;  // per row
  static constexpr int kRowBytes = kChunks * 16;
  static constexpr int kRows = kTransposed ? kDepth : R;
  static constexpr int kRowsAtOnce = kThreads / kChunks;
  static_assert(kRowsAtOnce % 8 == 0 && kRows % kRowsAtOnce == 0);

  /// In bytes. Rows whose distance is a multiple of 8 have their chunks at the same positions.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    const int turn = kChunks >= 8 ? row % 8 : row / 2 % 4;
    return row * kRowBytes + (chunk ^ turn) * 16;
  }

  /// This thread's part of the copies of consecutive tiles, in steps of kDepth.
  struct Loader {
    const bf16* from;           // its first chunk of the next tile
    std::int64_t stride, next;  // in elements: to its next chunk of this tile, and to the next tile
    int to;
    int rows_left, cols_left;  // of the operand, from this chunk on

    __device__ __forceinline__ Loader(const Operand<bf16>& x, int outer_begin) {
      const int row = static_cast<int>(threadIdx.x) / kChunks;
      const int chunk = static_cast<int>(threadIdx.x) % kChunks;
      const int first_row = row + (kTransposed ? 0 : outer_begin);
      const int first_col = chunk * 8 + (kTransposed ? outer_begin : 0);
      from = x.data + first_row * x.stride + first_col;
      stride = kRowsAtOnce * x.stride;
      next = kTransposed ? kDepth * x.stride : kDepth;
      to = offset(row, chunk);
      rows_left = (kTransposed ? x.depth : x.outer) - first_row;
      cols_left = (kTransposed ? x.outer : x.depth) - first_col;
    }
    /// Elements outside of the operand become zero.
    __device__ __forceinline__ void load(unsigned char* tile) {
#pragma unroll
      for (int pass = 0; pass < kRows / kRowsAtOnce; ++pass)
        copy(tile + to + pass * kRowsAtOnce * kRowBytes, from + pass * stride,
             pass * kRowsAtOnce < rows_left ? cols_left : 0);
      from += next;
      (kTransposed ? rows_left : cols_left) -= kDepth;
    }

   private:
    static __device__ __forceinline__ void copy(unsigned char* chunk, const bf16* values,
                                                int count) {
      if constexpr (kAligned) {
        cp_async_16(chunk, values, count > 0);
      } else {
        Pack<bf16, 8> pack;
#pragma unroll
        for (int i = 0; i < 8; ++i) pack.values[i] = i < count ? values[i] : from_float<bf16>(0.0f);
        *reinterpret_cast<Pack<bf16, 8>*>(chunk) = pack;
      }
    }
  };

  /// Addresses of this lane's rows for ldmatrix. A slice is 16 of the depth; i counts the warp's
  /// elements of the other dimension in units of 16.
  struct Lane {
    int at[kTransposed ? kWarpOuter / 16 : kDepth / 16];

    /// `left`: fragments of a, 16 x 16; otherwise two fragments of b with 8 columns each, b[0],
    /// b[1] and b[2], b[3].
    __device__ __forceinline__ Lane(int warp_outer, bool left) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      // The order of the four matrices: in a the other rows come first, in b the other depth.
      const bool depth_first = !left;
      const int half = depth_first != kTransposed ? lane / 16 : lane / 8 % 2;
      const int other = depth_first != kTransposed ? lane / 8 % 2 : lane / 16;
      const int row = lane % 8 + 8 * half;
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof at / sizeof at[0]); ++i)
        at[i] = kTransposed ? offset(row, warp_outer / 8 + 2 * i + other)
                            : offset(warp_outer + row, 2 * i + other);
    }
    __device__ __forceinline__ void read(std::uint32_t (&registers)[4], const unsigned char* tile,
                                         int i, int slice) const {
      if constexpr (kTransposed)
        ldmatrix_x4_trans(registers, tile + at[i] + slice * 16 * kRowBytes);
      else
        ldmatrix_x4(registers, tile + at[slice] + i * 16 * kRowBytes);
    }
  };
};

/// M x N elements, computed by kWarpsM x kWarpsN warps. kAligned: addresses and strides of both
/// operands are multiples of 16 bytes, and so are the sizes of the dense dimension.
template <int M, int N, int kWarpsM, int kWarpsN, bool kTransposedA, bool kTransposedB,
          bool kAligned>
struct Bf16Tile {
  using Element = bf16;
  static constexpr int kM = M, kN = N, kThreads = kWarpsM * kWarpsN * kWarp;
  /// Blocks per multiprocessor for which its registers must suffice.
  static constexpr int kBlocks = M >= 128 ? 2 : M >= 64 ? 3 : 4;
  static constexpr int kRowsM = M / kWarpsM, kColsN = N / kWarpsN;  // per warp
  using A = OperandTile<M, kRowsM, kTransposedA, kThreads, kAligned>;
  using B = OperandTile<N, kColsN, kTransposedB, kThreads, kAligned>;
  /// Two stages are being copied while the third is multiplied.
  static constexpr int kStages = 3, kDepth = 32;
  static constexpr int kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kBytes = kStages * kStageBytes;
  struct Sums {
    float values[kRowsM / 16][kColsN / 8][4];
  };

  static __device__ __forceinline__ int warp_row() {
    return static_cast<int>(threadIdx.x) / kWarp / kWarpsN * kRowsM;
  }
  static __device__ __forceinline__ int warp_col() {
    return static_cast<int>(threadIdx.x) / kWarp % kWarpsN * kColsN;
  }

  /// sums = the tile whose first element is (row, col). `shared` has kBytes, free before and after
  /// the call.
  static __device__ __forceinline__ void multiply(unsigned char* shared, const Operand<bf16>& a,
                                                  const Operand<bf16>& b, int row, int col,
                                                  Sums& sums) {
#pragma unroll
    for (int i = 0; i < kRowsM / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kColsN / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.values[i][j][e] = 0.0f;
      }
    }
    const int steps = (a.depth + kDepth - 1) / kDepth;
    typename A::Loader load_a(a, row);
    typename B::Loader load_b(b, col);
    const typename A::Lane lane_a(warp_row(), true);
    const typename B::Lane lane_b(warp_col(), false);
    const auto load = [&](int step, int stage) {
      if (step < steps) {
        load_a.load(shared + stage * kStageBytes);
        load_b.load(shared + stage * kStageBytes + A::kBytes);
      }
      cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) load(stage, stage);
    for (int step = 0, stage = 0, next = kStages - 1; step < steps; ++step) {
      cp_async_wait<kStages - 2>();
      __syncthreads();  // the stage is loaded, and no thread still reads the one before it
      load(step + kStages - 1, next);
      const unsigned char* tile = shared + stage * kStageBytes;
#pragma unroll
      for (int slice = 0; slice < kDepth / 16; ++slice) {
        std::uint32_t left[kRowsM / 16][4];
#pragma unroll
        for (int i = 0; i < kRowsM / 16; ++i) lane_a.read(left[i], tile, i, slice);
#pragma unroll
        for (int j = 0; j < kColsN / 16; ++j) {
          std::uint32_t right[4];
          lane_b.read(right, tile + A::kBytes, j, slice);
          const std::uint32_t low[2] = {right[0], right[1]}, high[2] = {right[2], right[3]};
#pragma unroll
          for (int i = 0; i < kRowsM / 16; ++i) {
            mma_bf16(sums.values[i][2 * j], left[i], low);
            mma_bf16(sums.values[i][2 * j + 1], left[i], high);
          }
        }
      }
      stage = stage + 1 < kStages ? stage + 1 : 0;
      next = next + 1 < kStages ? next + 1 : 0;
    }
    cp_async_wait<0>();
    __syncthreads();
  }

  /// Visits this thread's elements, in parts: visit(number in the part, row, col, sum, sum at col +
  /// 1), with positions in the tile.
  static constexpr int kParts = kRowsM / 16 * 2, kPartPairs = kColsN / 8;
  template <class Visit>
  static __device__ __forceinline__ void for_pairs(const Sums& sums, int part, const Visit& visit) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, i = part / 2;
#pragma unroll
    for (int pair = 0; pair < kPartPairs; pair += 2) {
      const int j = part % 2 * (kPartPairs / 2) + pair / 2;
      const int row = warp_row() + 16 * i + lane / 4, col = warp_col() + 8 * j + lane % 4 * 2;
      const float* four = sums.values[i][j];
      visit(pair, row, col, four[0], four[1]);
      visit(pair + 1, row + 8, col, four[2], four[3]);
    }
  }
};

/// 64 x 64 elements of f32, 4 x 4 per thread.
template <bool kTransposedA, bool kTransposedB>
struct F32Tile {
  using Element = float;
  static constexpr int kM = 64, kN = 64, kThreads = 256, kBlocks = 2, kDepth = 16;
  static constexpr int kRow = 64 + 4;  // of one depth, in shared memory
  static constexpr int kBytes = 2 * kDepth * kRow * 4;
  struct Sums {
    float values[4][4];
  };

  /// Like Bf16Tile::multiply().
  static __device__ __forceinline__ void multiply(unsigned char* shared, const Operand<float>& a,
                                                  const Operand<float>& b, int row, int col,
                                                  Sums& sums) {
    auto* left = reinterpret_cast<float*>(shared);
    float* right = left + kDepth * kRow;
#pragma unroll
    for (int i = 0; i < 16; ++i) sums.values[i / 4][i % 4] = 0.0f;
    for (int depth = 0; depth < a.depth; depth += kDepth) {
      load<kTransposedA>(left, a, row, depth);
      load<kTransposedB>(right, b, col, depth);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const auto x = *reinterpret_cast<const Pack<float, 4>*>(left + d * kRow + tile_row());
        const auto y = *reinterpret_cast<const Pack<float, 4>*>(right + d * kRow + tile_col());
#pragma unroll
        for (int i = 0; i < 16; ++i) sums.values[i / 4][i % 4] += x.values[i / 4] * y.values[i % 4];
      }
      __syncthreads();
    }
  }
  static constexpr int kParts = 1, kPartPairs = 8;
  template <class Visit>
  static __device__ __forceinline__ void for_pairs(const Sums& sums, int, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      visit(2 * i, tile_row() + i, tile_col(), sums.values[i][0], sums.values[i][1]);
      visit(2 * i + 1, tile_row() + i, tile_col() + 2, sums.values[i][2], sums.values[i][3]);
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
#pragma unroll
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
