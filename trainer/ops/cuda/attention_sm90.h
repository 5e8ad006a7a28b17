// What attention's kernels for products of warpgroups share. Included by their .cu files.
#pragma once

#include "trainer/ops/cuda/attention_tiles.h"
#include "trainer/ops/cuda/warpgroup.h"

namespace sortie::trainer::ops::cuda {

/// Begins to bring rows `first` to `first` + kRows - 1 of a head, `token` elements apart, to a
/// tile: rows from `rows` on and columns from `columns` on become zeros. They are there after a
/// wait and a barrier. Each thread has one column of pieces, and rows whose places differ by whole
/// groups of eight: addresses are computed once.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void load_panels(bf16* tile, const bf16* head, std::int64_t token,
                                            int first, int rows, int columns) {
  constexpr int kPieces = kColumns / 8, kStep = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0 && kStep % 8 == 0);
  const int row = static_cast<int>(threadIdx.x) / kPieces,
            column = static_cast<int>(threadIdx.x) % kPieces * 8;
  const bf16* from = head + (first + row) * token + column;
  bf16* to = tile + PanelTile<kColumns>::at(kRows, row, column);
  const int rest = column < columns ? rows - first - row : 0;
#pragma unroll
  for (int i = 0; i < kRows; i += kStep) {
    if (kRows % kStep != 0 && i + row >= kRows) break;
    const bool valid = i < rest;
    cp_async_16(to + i * 64, valid ? from : head, valid);
    from += kStep * token;
  }
}

}  // namespace sortie::trainer::ops::cuda
