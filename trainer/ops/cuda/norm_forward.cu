// One pass over memory: a row is read once, kept in registers, and normalised. Rows that are too
// wide for that are read again, from the L2 cache.
#include "trainer/ops/cuda/norm.h"
#include "trainer/ops/cuda/norm_rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// `packs`: packs that a thread keeps in registers; 0: none.
template <class T, int packs, bool row_per_warp, bool packed>
__global__ void __launch_bounds__(kMostThreads) norm_forward_kernel(NormForward<T> a) {
  constexpr int N = kPackOf<T>;
  constexpr int kUnrolled = packs > 0 ? packs : 1;
  const std::int64_t row =
      row_per_warp ? std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y : blockIdx.x;
  if (row >= a.y.rows) return;
  const std::int64_t cols = a.y.cols, step = std::int64_t{row_per_warp ? kWarp : blockDim.x} * N;
  const std::int64_t turns = packs > 0 ? packs : (cols + step - 1) / step;
  const std::int64_t first = std::int64_t{threadIdx.x} * N;
  const T* residual = a.residual.data + row * a.residual.stride;
  const T* branch = a.branch.data + row * a.branch.stride;
  T* sum = a.sum.data + row * a.sum.stride;
  const auto row_sum = [](float value) {
    if constexpr (row_per_warp)
      return warp_sum(value);
    else
      return block_sum(value, shared_memory<float>());
  };

  // All loads of a row are before its first store and without branches in between, for which they
  // would wait. Threads without columns therefore load column 0.
  Pack<T, N> kept[kUnrolled], added[kUnrolled];
  const auto fetch = [&](std::int64_t at, std::int64_t col) {
    if (packed && col >= cols) col = 0;
    kept[at] = read_columns<packed>(residual, col, cols);
    if (a.branch.data != nullptr) added[at] = read_columns<packed>(branch, col, cols);
  };
  if constexpr (packs > 0) {
#pragma unroll
    for (int i = 0; i < packs; ++i) fetch(i, first + i * step);
  }
  float total = 0.0f;
#pragma unroll kUnrolled
  for (std::int64_t i = 0; i < turns; ++i) {
    const std::int64_t col = first + i * step, at = packs > 0 ? i : 0;
    if (col >= cols) break;
    if constexpr (packs == 0) fetch(0, col);
    if (a.branch.data != nullptr) {
      Floats<N> floats;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        floats.values[j] = to_float(kept[at].values[j]) + to_float(added[at].values[j]);
        kept[at].values[j] = from_float<T>(floats.values[j]);
      }
      write_columns<packed>(sum, col, cols, floats);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) total += to_float(kept[at].values[j]);
  }
  const auto read = [&](std::int64_t i, std::int64_t col) {
    if constexpr (packs > 0)
      return kept[i];
    else
      return read_columns<packed>(static_cast<const T*>(sum), col, cols);
  };

  const float share = 1.0f / static_cast<float>(cols);
  const float mean = a.layer ? row_sum(total) * share : 0.0f;
  float squares = 0.0f;
#pragma unroll kUnrolled
  for (std::int64_t i = 0; i < turns; ++i) {
    const std::int64_t col = first + i * step;
    if (col >= cols) break;
    const Pack<T, N> x = read(i, col);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float centred = to_float(x.values[j]) - mean;
      if (packed || col + j < cols) squares += centred * centred;
    }
  }
  const float reciprocal = 1.0f / sqrtf(row_sum(squares) * share + a.eps);
  if (threadIdx.x == 0) {
    a.stats[2 * row] = mean;
    a.stats[2 * row + 1] = reciprocal;
  }

  T* y = a.y.data + row * a.y.stride;
#pragma unroll kUnrolled
  for (std::int64_t i = 0; i < turns; ++i) {
    const std::int64_t col = first + i * step;
    if (col >= cols) break;
    const Pack<T, N> x = read(i, col);
    const Floats<N> weight = read_floats<packed, N>(a.weight, col, cols);
    Floats<N> result;
#pragma unroll
    for (int j = 0; j < N; ++j)
      result.values[j] = (to_float(x.values[j]) - mean) * reciprocal * weight.values[j];
    if (a.bias != nullptr) {
      const Floats<N> bias = read_floats<packed, N>(a.bias, col, cols);
#pragma unroll
      for (int j = 0; j < N; ++j) result.values[j] += bias.values[j];
    }
    write_columns<packed>(y, col, cols, result);
  }
}

template <class T, bool packed>
void norm_forward_of(cudaStream_t stream, const NormForward<T>& a) {
  constexpr int N = kPackOf<T>;
  constexpr int kFew = 8, kMany = 32;  // columns of a thread
  const std::int64_t rows = a.y.rows, cols = a.y.cols;
  const Grid of_warps{.blocks = blocks_for(rows, kRowsAtATime), .threads = {kWarp, kRowsAtATime}};
  const auto of_blocks = [&](unsigned threads) {
    return Grid{.blocks = static_cast<unsigned>(rows),
                .threads = threads,
                .shared_bytes = sizeof(float) * threads / kWarp};
  };
  if (cols <= kFew * kWarp)
    launch(norm_forward_kernel<T, kFew / N, true, packed>, of_warps, stream, a);
  else if (cols <= kMany * kWarp)
    launch(norm_forward_kernel<T, kMany / N, true, packed>, of_warps, stream, a);
  else if (cols <= kMany * kMostThreads)
    launch(norm_forward_kernel<T, kMany / N, false, packed>, of_blocks(threads_for(cols, kMany)),
           stream, a);
  else
    launch(norm_forward_kernel<T, 0, false, packed>, of_blocks(kMostThreads), stream, a);
}

}  // namespace

template <class T>
void norm_forward(cudaStream_t stream, const NormForward<T>& a) {
  const std::int64_t cols = a.y.cols;
  if (is_packed<T>(cols, a.residual, a.branch, a.sum, a.y, one_row_of(a.weight, cols),
                   one_row_of(a.bias, cols)))
    norm_forward_of<T, true>(stream, a);
  else
    norm_forward_of<T, false>(stream, a);
}
template void norm_forward(cudaStream_t, const NormForward<float>&);
template void norm_forward(cudaStream_t, const NormForward<bf16>&);

}  // namespace sortie::trainer::ops::cuda
