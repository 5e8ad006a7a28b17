#include "trainer/ops/cuda/moe_experts.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kWarps = 8;  // per block; each processes one row

__device__ __forceinline__ std::int64_t row_of_warp() {
  return std::int64_t{blockIdx.x} * kWarps + warp_of_thread();
}
Grid grid_of_rows(std::int64_t rows) {
  return {.blocks = blocks_for(rows, kWarps), .threads = kWarps * kWarp};
}

/// N elements per access, here and below.
template <int N, class T>
__device__ __forceinline__ void clear_row(T* row, std::int64_t cols) {
  Pack<T, N> zeros;
  for (T& value : zeros.values) value = from_float<T>(0.0f);
  for (std::int64_t col = lane_of_thread() * N; col < cols; col += kWarp * N)
    write_pack(row + col, zeros);
}

/// Iterates over a lane's part of a row in batches of kBatch packs of N, so that many loads are in
/// flight: body(each), where each(visit) calls visit(number in the batch, col).
template <int N, int kBatch, class Body>
__device__ __forceinline__ void for_batches(std::int64_t cols, const Body& body) {
  for (std::int64_t first = lane_of_thread() * N; first < cols; first += kBatch * kWarp * N)
    body([&](const auto& visit) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (first + i * kWarp * N < cols) visit(i, first + i * kWarp * N);
    });
}

template <class T, int N>
__global__ void dispatch_kernel(const SortedRows rows, Rows<const T> x, Rows<T> sorted) {
  const std::int64_t row = row_of_warp();
  if (row >= rows.begin[rows.experts]) return;
  T* to = sorted.data + row * sorted.stride;
  const int choice = rows.source[row];
  if (choice < 0) return clear_row<N>(to, sorted.cols);
  const T* from = x.data + std::int64_t{choice / rows.top_k} * x.stride;
  for_batches<N, 4>(x.cols, [&](auto&& each) {
    Pack<T, N> packs[4];
    each([&](int i, std::int64_t col) { packs[i] = read_pack<Pack<T, N>>(from + col); });
    each([&](int i, std::int64_t col) { write_pack(to + col, packs[i]); });
  });
}

template <class T, int N>
__global__ void combine_kernel(const SortedRows rows, Rows<const T> sorted, const float* weights,
                               Rows<T> y) {
  const std::int64_t token = row_of_warp();
  if (token >= rows.tokens) return;
  const std::int64_t first = token * rows.top_k;
  for (std::int64_t col = lane_of_thread() * N; col < y.cols; col += kWarp * N) {
    float sums[N] = {};
    for (int j = 0; j < rows.top_k; ++j) {
      const int row = rows.row_of[first + j];
      if (row < 0) continue;  // the whole warp has the same token
      const auto pack = read_pack<Pack<T, N>>(sorted.data + row * sorted.stride + col);
      const float weight = weights != nullptr ? weights[first + j] : 1.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += weight * to_float(pack.values[i]);
    }
    Pack<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) result.values[i] = from_float<T>(sums[i]);
    write_pack(y.data + token * y.stride + col, result);
  }
}

template <class T, int N>
__global__ void combine_backward_kernel(const SortedRows rows, Rows<const T> dy,
                                        Rows<const T> sorted, const float* weights, Rows<T> dsorted,
                                        float* dweights) {
  const std::int64_t row = row_of_warp();
  if (row >= rows.begin[rows.experts]) return;
  T* to = dsorted.data + row * dsorted.stride;
  const int choice = rows.source[row];
  if (choice < 0) return clear_row<N>(to, dsorted.cols);
  const T* gradient = dy.data + std::int64_t{choice / rows.top_k} * dy.stride;
  const T* value = sorted.data + row * sorted.stride;
  const float weight = weights[choice];
  float sum = 0.0f;
  for_batches<N, 2>(dy.cols, [&](auto&& each) {
    Pack<T, N> slopes[2], values[2];
    each([&](int i, std::int64_t col) {
      slopes[i] = read_pack<Pack<T, N>>(gradient + col);
      values[i] = read_pack<Pack<T, N>>(value + col);
    });
    each([&](int i, std::int64_t col) {
      Pack<T, N> result;
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const float slope = to_float(slopes[i].values[e]);
        sum += slope * to_float(values[i].values[e]);
        result.values[e] = from_float<T>(weight * slope);
      }
      write_pack(to + col, result);
    });
  });
  sum = warp_sum(sum);
  if (lane_of_thread() == 0) dweights[choice] = sum;
}

template <class T>
bool aligned(const Rows<T>& rows) {
  constexpr std::int64_t kPack = kPackOf<T>;
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.cols % kPack == 0 &&
         rows.stride % kPack == 0;
}

}  // namespace

template <class T>
void dispatch_rows(cudaStream_t stream, const SortedRows& rows, Rows<const T> x, Rows<T> sorted) {
  const bool packs = aligned(x) && aligned(sorted);
  launch(packs ? dispatch_kernel<T, kPackOf<T>> : dispatch_kernel<T, 1>,
         grid_of_rows(rows.capacity), stream, rows, x, sorted);
}
template <class T>
void combine_rows(cudaStream_t stream, const SortedRows& rows, Rows<const T> sorted,
                  const float* weights, Rows<T> y) {
  const bool packs = aligned(sorted) && aligned(y);
  launch(packs ? combine_kernel<T, kPackOf<T>> : combine_kernel<T, 1>, grid_of_rows(rows.tokens),
         stream, rows, sorted, weights, y);
}
template <class T>
void combine_rows_backward(cudaStream_t stream, const SortedRows& rows, Rows<const T> dy,
                           Rows<const T> sorted, const float* weights, Rows<T> dsorted,
                           float* dweights) {
  const bool packs = aligned(dy) && aligned(sorted) && aligned(dsorted);
  launch(packs ? combine_backward_kernel<T, kPackOf<T>> : combine_backward_kernel<T, 1>,
         grid_of_rows(rows.capacity), stream, rows, dy, sorted, weights, dsorted, dweights);
}

#define SORTIE_EXPERT_ROWS(T)                                                              \
  template void dispatch_rows(cudaStream_t, const SortedRows&, Rows<const T>, Rows<T>);    \
  template void combine_rows(cudaStream_t, const SortedRows&, Rows<const T>, const float*, \
                             Rows<T>);                                                     \
  template void combine_rows_backward(cudaStream_t, const SortedRows&, Rows<const T>,      \
                                      Rows<const T>, const float*, Rows<T>, float*);
SORTIE_EXPERT_ROWS(float)
SORTIE_EXPERT_ROWS(bf16)
#undef SORTIE_EXPERT_ROWS

}  // namespace sortie::trainer::ops::cuda
