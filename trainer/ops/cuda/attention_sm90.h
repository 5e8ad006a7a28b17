// Shared by attention's kernels with warpgroup products. Included by their .cu files.
#pragma once

#include "trainer/ops/cuda/attention_tiles.h"
#include "trainer/ops/cuda/warpgroup.h"

namespace sortie::trainer::ops::cuda {

/// Number of the thread's warp, in a form that tells the compiler that it is uniform in the warp.
__device__ __forceinline__ int uniform_warp() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
}

/// Loads rows of a head into tiles. Each thread has one column of pieces, and rows whose distances
/// are multiples of eight: addresses are computed once and advance from tile to tile.
template <int kRows, int kColumns, int kThreads>
class PanelLoader {
 public:
  /// Rows are `token` elements apart; columns from `columns` on are filled with zeros.
  __device__ __forceinline__ PanelLoader(std::int64_t token, int columns)
      : token_(token), there_(column() < columns) {}
  /// Moves to rows `first` and on of `head`; rows from `rows` on are filled with zeros.
  __device__ __forceinline__ void go_to(const bf16* head, int first, int rows) {
    from_ = head + (first + row()) * token_ + column();
    rest_ = there_ ? rows - first - row() : 0;
  }
  /// Starts to load the next kRows rows, which are complete after a wait and a barrier.
  __device__ __forceinline__ void load(bf16* tile) {
    bf16* to = tile + PanelTile<kColumns>::at(kRows, row(), column());
    const bf16* from = from_;
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) {
      if (kRows % kStep != 0 && i + row() >= kRows) break;
      cp_async_16(to + i * 64, from, i < rest_);
      from += kStep * token_;
    }
    from_ += kRows * token_;
    rest_ -= kRows;
  }

 private:
  static constexpr int kPieces = kColumns / 8, kStep = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0 && kStep % 8 == 0);
  static __device__ __forceinline__ int row() {
    return static_cast<int>(threadIdx.x) / kPieces;
  }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % kPieces * 8;
  }
  const std::int64_t token_;
  const bool there_;
  const bf16* from_ = nullptr;
  int rest_ = 0;
};

/// Shared memory of a warp for store_rows(), in elements.
template <int kD>
inline constexpr int kStagingOfWarp = 16 * (kD + 8);
/// Writes a warp's 16 rows of sums, times a factor for each half, to `out`, whose rows are `stride`
/// apart. Uses the warp's part of `staging` to write whole pieces of 16 bytes. Writes only the
/// first `rows` rows and `columns` columns, a multiple of 8.
template <int kD>
__device__ __forceinline__ void store_rows(bf16* staging, int warp, const float (&sums)[kD / 8][4],
                                           const float (&factors)[2], bf16* out,
                                           std::int64_t stride, int rows, int columns) {
  constexpr int kStride = kD + 8, kPieces = kD / 8;  // rows of a column are in different banks
  bf16* mine = staging + warp * kStagingOfWarp<kD>;
  const int lane = lane_of_thread();
  auto* to = reinterpret_cast<std::uint32_t*>(mine + lane / 4 * kStride + lane % 4 * 2);
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    to[4 * n] = pack_bf16(sums[n][0] * factors[0], sums[n][1] * factors[0]);
    to[4 * kStride + 4 * n] = pack_bf16(sums[n][2] * factors[1], sums[n][3] * factors[1]);
  }
  __syncwarp();
  const int column = lane % kPieces * 8;
#pragma unroll
  for (int i = 0; i < 16; i += kWarp / kPieces) {
    const int row = i + lane / kPieces;
    const auto piece = *reinterpret_cast<const Pack<bf16, 8>*>(mine + row * kStride + column);
    if (row < rows && column < columns) write_pack(out + row * stride + column, piece);
  }
  __syncwarp();
}

}  // namespace sortie::trainer::ops::cuda
