#include "trainer/ops/cuda/optimizer.h"

#include "trainer/ops/cuda/adamw_element.h"
#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kSumThreads = 256;
constexpr int kSumEach = 4;  // consecutive values per thread and turn
static_assert(kSumThreads * kSumEach == kSquaresOfTurn);

/// Block b has the turns b, b + blocks, ... of kSumThreads * kSumEach values. Which thread adds
/// what, and when, does not depend on `packed` (16-byte loads).
template <bool packed>
__global__ void __launch_bounds__(kSumThreads)
    square_parts_kernel(Flat<const float> values, double* parts) {
  const std::int64_t step = std::int64_t{gridDim.x} * kSumThreads * kSumEach;
  double sums[kSumEach] = {};
  std::int64_t at = (std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kSumEach;
#pragma unroll 4
  for (; at + kSumEach <= values.size; at += step) {
    Floats<kSumEach> x;
    if constexpr (packed) {
      x = load<kSumEach>(values.data + at);
    } else {
#pragma unroll
      for (int i = 0; i < kSumEach; ++i) x.values[i] = values.data[at + i];
    }
#pragma unroll
    for (int i = 0; i < kSumEach; ++i) {
      const auto wide = static_cast<double>(x.values[i]);
      sums[i] += wide * wide;
    }
  }
#pragma unroll
  for (int i = 0; i < kSumEach; ++i)
    if (at + i < values.size) {
      const auto wide = static_cast<double>(values.data[at + i]);
      sums[i] += wide * wide;
    }
  const double sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), shared_memory<double>());
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/// One block.
__global__ void __launch_bounds__(kSumThreads)
    add_parts_kernel(const double* parts, std::int64_t count, double* sum) {
  double mine = 0.0;
  for (std::int64_t i = threadIdx.x; i < count; i += kSumThreads) mine += parts[i];
  const double all = block_sum(mine, shared_memory<double>());
  if (threadIdx.x == 0) *sum = all;
}

/// 16 bytes are read and 12 written per element, 14 with the copy in bf16.
struct AdamW {
  AdamWNumbers a;
  AdamWRange range;

  template <int N>
  __device__ void at(std::int64_t, std::int64_t col) const {
    if (a.gate[0] == 0.0f) return;
    Floats<N> w = load<N>(range.w + col), m = load<N>(range.m + col), v = load<N>(range.v + col);
    const Floats<N> grad = load<N>(range.grad + col);
#pragma unroll
    for (int i = 0; i < N; ++i)
      adamw_element(a, grad.values[i], w.values[i], m.values[i], v.values[i]);
    store<N>(range.w + col, w);
    store<N>(range.m + col, m);
    store<N>(range.v + col, v);
    if (range.compute != nullptr) store<N>(range.compute + col, w);
  }
};

}  // namespace

void sum_squares(cudaStream_t stream, Flat<const float> values, double* parts, double* sum) {
  const std::int64_t count = square_parts(values.size);
  const Grid grid{.blocks = static_cast<unsigned>(count),
                  .threads = kSumThreads,
                  .shared_bytes = sizeof(double) * kSumThreads / kWarp};
  const bool packed = reinterpret_cast<std::uintptr_t>(values.data) % 16 == 0;
  launch(packed ? square_parts_kernel<true> : square_parts_kernel<false>, grid, stream, values,
         parts);
  launch(add_parts_kernel, {.blocks = 1, .threads = kSumThreads, .shared_bytes = grid.shared_bytes},
         stream, static_cast<const double*>(parts), count, sum);
}

void adamw_range(cudaStream_t stream, const AdamWNumbers& numbers, const AdamWRange& range) {
  for_each_of_range(stream, AdamW{numbers, range});
}

}  // namespace sortie::trainer::ops::cuda
