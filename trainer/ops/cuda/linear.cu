#include "trainer/ops/cuda/linear.h"

#include <algorithm>

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kWarps = 8;  // of a block that sums
constexpr int kSumThreads = kWarps * kWarp;

/// A block per kWarp * N columns and part of the rows, which its warps take in turn. Reads every
/// element once; bound by memory.
template <class T, int N>
__global__ void __launch_bounds__(kSumThreads)
    column_parts_kernel(Rows<const T> x, std::int64_t rows_of_part, float* __restrict__ parts) {
  float* sums_of_warps = shared_memory<float>();  // [kWarps, kWarp * N]
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t first = std::int64_t{blockIdx.x} * kWarp * N;
  const std::int64_t col = first + lane * N;
  const std::int64_t begin = blockIdx.y * rows_of_part;
  const std::int64_t end = begin + rows_of_part < x.rows ? begin + rows_of_part : x.rows;
  float sums[N] = {};
  if (col + N <= x.cols) {
#pragma unroll 4
    for (std::int64_t row = begin + warp; row < end; row += kWarps) {
      const auto pack = *reinterpret_cast<const Pack<T, N>*>(x.data + row * x.stride + col);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += to_float(pack.values[i]);
    }
  } else {
    for (std::int64_t row = begin + warp; row < end; row += kWarps)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (col + i < x.cols) sums[i] += to_float(x.data[row * x.stride + col + i]);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums_of_warps[(warp * kWarp + lane) * N + i] = sums[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kWarp * N; i += kSumThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int from = 0; from < kWarps; ++from) sum += sums_of_warps[from * kWarp * N + i];
    if (first + i < x.cols) parts[blockIdx.y * x.cols + first + i] = sum;
  }
}

/// A block per kWarp columns, whose warps take the parts in turn.
__global__ void __launch_bounds__(kSumThreads)
    join_parts_kernel(const float* __restrict__ parts, int count, std::int64_t cols,
                      float* __restrict__ sums) {
  float* sums_of_warps = shared_memory<float>();  // [kWarps, kWarp]
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t col = std::int64_t{blockIdx.x} * kWarp + lane;
  float sum = 0.0f;
  if (col < cols)
    for (int part = warp; part < count; part += kWarps) sum += parts[part * cols + col];
  sums_of_warps[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || col >= cols) return;
  float all = 0.0f;
#pragma unroll
  for (int from = 0; from < kWarps; ++from) all += sums_of_warps[from * kWarp + lane];
  sums[col] += all;
}

template <class T>
__global__ void round_kernel(Flat<const float> from, T* __restrict__ to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (i < from.size) to[i] = from_float<T>(from.data[i]);
}

/// A block per row, element by element, because it is only used for products of a few columns.
template <class T>
__global__ void add_bias_kernel(const float* __restrict__ bias, Rows<T> y) {
  T* row = y.data + blockIdx.x * y.stride;
  for (std::int64_t col = threadIdx.x; col < y.cols; col += kSumThreads)
    row[col] = from_float<T>(to_float(row[col]) + bias[col]);
}

template <class T, int N>
void start_column_parts(cudaStream_t stream, Rows<const T> x, float* parts) {
  launch(
      column_parts_kernel<T, N>,
      {.blocks = {blocks_for(x.cols, kWarp * N), static_cast<unsigned>(column_sum_parts(x.rows))},
       .threads = kSumThreads,
       .shared_bytes = kWarps * kWarp * N * sizeof(float)},
      stream, x, rows_of_part(x.rows), parts);
}

}  // namespace

void add_parts(cudaStream_t stream, const float* parts, std::int64_t count, std::int64_t cols,
               float* sums) {
  launch(join_parts_kernel,
         {.blocks = blocks_for(cols, kWarp),
          .threads = kSumThreads,
          .shared_bytes = kSumThreads * sizeof(float)},
         stream, parts, static_cast<int>(count), cols, sums);
}

template <class T>
void add_column_sums(cudaStream_t stream, Rows<const T> x, float* parts, float* sums) {
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.stride % kPackOf<T> == 0;
  if (aligned)
    start_column_parts<T, kPackOf<T>>(stream, x, parts);
  else
    start_column_parts<T, 1>(stream, x, parts);
  add_parts(stream, parts, column_sum_parts(x.rows), x.cols, sums);
}
template void add_column_sums(cudaStream_t, Rows<const float>, float*, float*);
template void add_column_sums(cudaStream_t, Rows<const bf16>, float*, float*);

template <class T>
void round_bias(cudaStream_t stream, Flat<const float> from, T* to) {
  launch(round_kernel<T>, {.blocks = blocks_for(from.size, kSumThreads), .threads = kSumThreads},
         stream, from, to);
}
template void round_bias(cudaStream_t, Flat<const float>, float*);
template void round_bias(cudaStream_t, Flat<const float>, bf16*);

template <class T>
void add_bias(cudaStream_t stream, const float* bias, Rows<T> y) {
  launch(add_bias_kernel<T>, {.blocks = static_cast<unsigned>(y.rows), .threads = kSumThreads},
         stream, bias, y);
}
template void add_bias(cudaStream_t, const float*, Rows<float>);
template void add_bias(cudaStream_t, const float*, Rows<bf16>);

}  // namespace sortie::trainer::ops::cuda
