// Kernels that treat all elements of rows alike: 16 bytes per access if addresses allow it, else
// element by element. For .cu files. The operation is a struct with
//   template <int N> __device__ void at(std::int64_t row, std::int64_t col) const;
// for N elements from a column on. If N > 1, they are aligned to their size, up to 16 bytes.
#pragma once

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// N elements as floats.
template <int N>
struct Floats {
  float values[N];
};

/// Loads and stores in as few accesses of at most 16 bytes as possible; addresses are multiples of
/// their size.
template <int N, class T>
__device__ __forceinline__ Floats<N> load(const T* from) {
  constexpr int kEach = N < kPackOf<T> ? N : kPackOf<T>;
  Floats<N> result;
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    const auto pack = read_pack<Pack<T, kEach>>(from + i);
#pragma unroll
    for (int j = 0; j < kEach; ++j) result.values[i + j] = to_float(pack.values[j]);
  }
  return result;
}
template <int N, class T>
__device__ __forceinline__ void store(T* to, const Floats<N>& values) {
  constexpr int kEach = N < kPackOf<T> ? N : kPackOf<T>;
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    Pack<T, kEach> pack;
    if constexpr (sizeof(T) == sizeof(bf16) && kEach > 1) {
#pragma unroll
      for (int j = 0; j < kEach; j += 2)
        from_floats(values.values[i + j], values.values[i + j + 1], pack.values + j);
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) pack.values[j] = from_float<T>(values.values[i + j]);
    }
    write_pack(to + i, pack);
  }
}
template <int N, class T>
__device__ __forceinline__ Floats<N> load(const Rows<T>& from, std::int64_t row, std::int64_t col) {
  return load<N>(from.data + row * from.stride + col);
}
template <int N, class T>
__device__ __forceinline__ void store(const Rows<T>& to, std::int64_t row, std::int64_t col,
                                      const Floats<N>& values) {
  store<N>(to.data + row * to.stride + col, values);
}

/// True if N elements from every N-th column on are aligned to their size, up to 16 bytes.
template <int N, class T>
bool has_packs(const Rows<T>& x) {
  constexpr std::size_t kBytes = sizeof(T) * N < 16 ? sizeof(T) * N : 16;
  return x.data == nullptr ||
         (reinterpret_cast<std::uintptr_t>(x.data) % kBytes == 0 &&
          (x.rows <= 1 || static_cast<std::size_t>(x.stride) * sizeof(T) % kBytes == 0));
}
/// Joins the rows of all views into one row if none of them has gaps, so that there is at most one
/// tail.
template <class... T>
void join_rows(Rows<T>&... views) {
  if (((views.stride == views.cols || views.rows <= 1) && ...))
    ((views = {views.data, 1, views.rows * views.cols, views.rows * views.cols}), ...);
}

/// Numbers of rows and columns of the elements. `counted`: number of rows on the device, at most
/// `rows`; nullptr: all.
struct RowSizes {
  std::int64_t rows = 0, cols = 0;
  const std::int64_t* counted = nullptr;
};

template <int N, class Each>
__global__ void __launch_bounds__(256)
    each_pack_kernel(RowSizes sizes, unsigned blocks_per_row, Each each) {
  const std::int64_t row = std::int64_t{blockIdx.x / blocks_per_row} * blockDim.y + threadIdx.y;
  const std::int64_t col =
      (std::int64_t{blockIdx.x % blocks_per_row} * blockDim.x + threadIdx.x) * N;
  if (row >= sizes.rows || col >= sizes.cols) return;
  if (sizes.counted != nullptr && row >= *sizes.counted) return;
  if (col + N <= sizes.cols) {
    each.template at<N>(row, col);
    return;
  }
#pragma unroll 1
  for (std::int64_t i = col; i < sizes.cols; ++i) each.template at<1>(row, i);
}

/// Calls each.at() for all elements, N at a time. Blocks of 256 threads cover several rows if rows
/// are short. All blocks are on x, which allows 2^31.
template <int N, class Each>
void for_each_pack(cudaStream_t stream, const RowSizes& sizes, const Each& each) {
  constexpr unsigned kThreads = 256;
  const std::int64_t packs = (sizes.cols + N - 1) / N;
  unsigned across = kWarp;
  while (across < kThreads && across < packs) across *= 2;
  const unsigned down = sizes.rows == 1 ? 1 : kThreads / across;
  const unsigned blocks_per_row = blocks_for(packs, across);
  launch(each_pack_kernel<N, Each>,
         {.blocks = blocks_per_row * blocks_for(sizes.rows, down), .threads = {across, down}},
         stream, sizes, blocks_per_row, each);
}

/// The same with as many elements of T at a time as 16 bytes hold, if all views allow that, else
/// one.
template <class T, class Each, class... Views>
void for_each_element(cudaStream_t stream, const RowSizes& sizes, const Each& each,
                      const Views&... views) {
  if ((has_packs<kPackOf<T>>(views) && ...))
    for_each_pack<kPackOf<T>>(stream, sizes, each);
  else
    for_each_pack<1>(stream, sizes, each);
}

}  // namespace sortie::trainer::ops::cuda
