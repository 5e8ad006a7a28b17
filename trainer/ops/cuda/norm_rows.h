// Shared by the forward and backward kernels of norms. A warp or a block processes a row, and a
// thread's packs of it are `threads` packs apart. Which thread has which column does not depend on
// addresses. Only the access does: by 16 bytes (`packed`), or element by element if the addresses
// or the number of columns are not multiples of that. Sums therefore have the same bits either way.
#pragma once

#include "trainer/ops/cuda/rows.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// A pack of a row from column `col` on, which is below `cols`; 0 past the end.
template <bool packed, class T>
__device__ __forceinline__ Pack<T, kPackOf<T>> read_columns(const T* row, std::int64_t col,
                                                            std::int64_t cols) {
  if constexpr (packed) {
    return read_pack<Pack<T, kPackOf<T>>>(row + col);
  } else {
    Pack<T, kPackOf<T>> pack{};
#pragma unroll
    for (int i = 0; i < kPackOf<T>; ++i)
      if (col + i < cols) pack.values[i] = row[col + i];
    return pack;
  }
}
/// The same for N values of f32.
template <bool packed, int N>
__device__ __forceinline__ Floats<N> read_floats(const float* row, std::int64_t col,
                                                 std::int64_t cols) {
  if constexpr (packed) {
    return load<N>(row + col);
  } else {
    Floats<N> floats{};
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (col + i < cols) floats.values[i] = row[col + i];
    return floats;
  }
}
/// Writes those of the floats from `col` on that are below `cols`.
template <bool packed, int N, class T>
__device__ __forceinline__ void write_columns(T* row, std::int64_t col, std::int64_t cols,
                                              const Floats<N>& floats) {
  if constexpr (packed) {
    store<N>(row + col, floats);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (col + i < cols) row[col + i] = from_float<T>(floats.values[i]);
  }
}

/// True if all views can be accessed by packs.
template <class T, class... Views>
bool is_packed(std::int64_t cols, const Views&... views) {
  return cols % kPackOf<T> == 0 && (has_packs<kPackOf<T>>(views) && ...);
}
inline Rows<const float> one_row_of(const float* data, std::int64_t cols) {
  return {data, 1, cols, cols};
}

/// Threads of a block that processes a row: whole warps, with at most `each` columns per thread.
inline unsigned threads_for(std::int64_t cols, int each) {
  return blocks_for(cols, std::int64_t{each} * kWarp) * kWarp;
}

}  // namespace sortie::trainer::ops::cuda
