// One pass over memory for dx and the sums over rows: a block goes over its rows with the sums of
// its columns in registers and writes them once. A second kernel adds the blocks' sums in their
// order.
#include "trainer/ops/cuda/norm.h"
#include "trainer/ops/cuda/norm_rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kEach = kNormColumns;

/// The sums of both values over a block, in every thread. Two places in turn: one barrier is
/// enough.
struct BlockSums {
  float* scratch;  // 4 per warp
  int turn = 0;

  __device__ __forceinline__ void add(float& first, float& second) {
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    float* place = scratch + turn * 2 * warps;
    turn = 1 - turn;
    first = warp_sum(first);
    second = warp_sum(second);
    if (threadIdx.x % kWarp == 0) {
      place[threadIdx.x / kWarp * 2] = first;
      place[threadIdx.x / kWarp * 2 + 1] = second;
    }
    __syncthreads();
    first = second = 0.0f;
    for (int warp = 0; warp < warps; ++warp) {
      first += place[2 * warp];
      second += place[2 * warp + 1];
    }
  }
};

template <class T>
struct NormBackwardTask {
  NormBackward<T> a;
  NormParts parts;
};

/// With g = dy * weight and z = (x - mean) * r:
///   dx = dresidual + r * (g - mean(g) [layer only] - z * mean(g z)).
/// `packs`: how many a thread keeps of x, dy and dresidual, and of the sums; 0: none, the sums are
/// in `partial` from the first row on.
template <class T, int packs, bool row_per_warp, bool packed, bool with_bias>
__global__ void __launch_bounds__(kMostThreads) norm_backward_kernel(NormBackwardTask<T> task) {
  constexpr int N = kPackOf<T>;
  constexpr int kUnrolled = packs > 0 ? packs : 1;
  constexpr int kPlanes = with_bias ? 2 : 1;
  const NormBackward<T>& a = task.a;
  const std::int64_t cols = a.x.cols, step = std::int64_t{row_per_warp ? kWarp : blockDim.x} * N;
  const std::int64_t turns = packs > 0 ? packs : (cols + step - 1) / step;
  const std::int64_t first = std::int64_t{threadIdx.x} * N;
  const float share = 1.0f / static_cast<float>(cols);
  const std::int64_t begin = blockIdx.x * task.parts.rows_per_block;
  const std::int64_t rest = a.x.rows - begin;
  const std::int64_t end =
      begin + (rest < task.parts.rows_per_block ? rest : task.parts.rows_per_block);
  float* partial = a.partial + blockIdx.x * kPlanes * cols;
  BlockSums block_sums{shared_memory<float>()};

  Floats<N> sums[kPlanes][kUnrolled] = {};
  for (std::int64_t row = begin + (row_per_warp ? threadIdx.y : 0); row < end;
       row += row_per_warp ? blockDim.y : 1) {
    const T* dy_row = a.dy.data + row * a.dy.stride;
    const T* x_row = a.x.data + row * a.x.stride;
    const T* direct_row = a.dresidual.data + row * a.dresidual.stride;
    T* dx_row = a.dx.data + row * a.dx.stride;
    const float mean = a.stats[2 * row], reciprocal = a.stats[2 * row + 1];
    Pack<T, N> dy_kept[kUnrolled], x_kept[kUnrolled], direct_kept[kUnrolled];
    float sum_g = 0.0f, sum_gz = 0.0f;
    const auto read = [&](std::int64_t at, std::int64_t col, bool with_direct) {
      dy_kept[at] = read_columns<packed>(dy_row, col, cols);
      x_kept[at] = read_columns<packed>(x_row, col, cols);
      if (with_direct && a.dresidual.data != nullptr)
        direct_kept[at] = read_columns<packed>(direct_row, col, cols);
    };
    if constexpr (packs > 0) {
#pragma unroll
      for (int i = 0; i < packs; ++i)
        if (first + i * step < cols) read(i, first + i * step, true);
    }
#pragma unroll kUnrolled
    for (std::int64_t i = 0; i < turns; ++i) {
      const std::int64_t col = first + i * step;
      if (col >= cols) break;
      const std::int64_t at = packs > 0 ? i : 0;
      if constexpr (packs == 0) read(0, col, false);
      const Floats<N> weight = read_floats<packed, N>(a.weight, col, cols);
      Floats<N> dw, db;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float d = to_float(dy_kept[at].values[j]), g = d * weight.values[j];
        const float z = (to_float(x_kept[at].values[j]) - mean) * reciprocal;
        sum_g += g;
        sum_gz += g * z;
        dw.values[j] = d * z;
        db.values[j] = d;
      }
      if constexpr (packs == 0) {
        if (a.partial == nullptr) continue;
        if (row > begin) {
          sums[0][0] = read_floats<packed, N>(partial, col, cols);
          if constexpr (with_bias) sums[1][0] = read_floats<packed, N>(partial + cols, col, cols);
        } else {
          sums[0][0] = {};
          if constexpr (with_bias) sums[1][0] = {};
        }
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sums[0][at].values[j] += dw.values[j];
        if constexpr (with_bias) sums[1][at].values[j] += db.values[j];
      }
      if constexpr (packs == 0) {
        write_columns<packed>(partial, col, cols, sums[0][0]);
        if constexpr (with_bias) write_columns<packed>(partial + cols, col, cols, sums[1][0]);
      }
    }
    if constexpr (row_per_warp) {
      sum_g = warp_sum(sum_g);
      sum_gz = warp_sum(sum_gz);
    } else {
      block_sums.add(sum_g, sum_gz);
    }
    const float mean_g = a.layer ? sum_g * share : 0.0f, mean_gz = sum_gz * share;
#pragma unroll kUnrolled
    for (std::int64_t i = 0; i < turns; ++i) {
      const std::int64_t col = first + i * step;
      if (col >= cols) break;
      const std::int64_t at = packs > 0 ? i : 0;
      if constexpr (packs == 0) read(0, col, true);
      const Floats<N> weight = read_floats<packed, N>(a.weight, col, cols);
      Floats<N> result;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float g = to_float(dy_kept[at].values[j]) * weight.values[j];
        const float z = (to_float(x_kept[at].values[j]) - mean) * reciprocal;
        result.values[j] = reciprocal * (g - mean_g - z * mean_gz);
        if (a.dresidual.data != nullptr) result.values[j] += to_float(direct_kept[at].values[j]);
      }
      write_columns<packed>(dx_row, col, cols, result);
    }
  }

  if (packs == 0 || a.partial == nullptr) return;
  if constexpr (row_per_warp) {
    // The warps' sums, in their order.
    float* all = shared_memory<float>();
    float* mine = all + threadIdx.y * kPlanes * cols;
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
      for (int i = 0; i < packs; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const std::int64_t col = first + i * step + j;
          if (col < cols) mine[plane * cols + col] = sums[plane][i].values[j];
        }
    __syncthreads();
    for (std::int64_t col = threadIdx.y * kWarp + threadIdx.x; col < kPlanes * cols;
         col += kWarp * kRowsAtATime) {
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kRowsAtATime; ++warp) sum += all[warp * kPlanes * cols + col];
      partial[col] = sum;
    }
  } else {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const std::int64_t col = first + i * step;
      if (col >= cols) break;
      write_columns<packed>(partial, col, cols, sums[0][i]);
      if constexpr (with_bias) write_columns<packed>(partial + cols, col, cols, sums[1][i]);
    }
  }
}

constexpr int kSumSlices = 16;

/// A block has kWarp columns of all blocks' sums; a warp of it has every kSumSlices-th block.
__global__ void __launch_bounds__(kWarp* kSumSlices)
    add_partials_kernel(const float* partial, std::int64_t blocks, std::int64_t cols,
                        std::int64_t planes, float* dweight, float* dbias) {
  float* slices = shared_memory<float>();
  const std::int64_t col = std::int64_t{blockIdx.x} * kWarp + threadIdx.x, all = planes * cols;
  float sum = 0.0f;
  if (col < all)
#pragma unroll 8
    for (std::int64_t block = threadIdx.y; block < blocks; block += kSumSlices)
      sum += partial[block * all + col];
  slices[threadIdx.y * kWarp + threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || col >= all) return;
  sum = 0.0f;
#pragma unroll
  for (int slice = 0; slice < kSumSlices; ++slice) sum += slices[slice * kWarp + threadIdx.x];
  float* to = col < cols ? dweight : dbias;
  if (to != nullptr) to[col < cols ? col : col - cols] += sum;
}

template <class T, bool packed, bool with_bias>
void norm_backward_of(cudaStream_t stream, const NormBackward<T>& a) {
  constexpr int kPacks = kEach / kPackOf<T>;
  const std::int64_t cols = a.x.cols;
  const NormBackwardTask<T> task{a, norm_parts(a.x.rows, cols)};
  const auto blocks = static_cast<unsigned>(task.parts.blocks);
  const auto of_threads = [&](unsigned threads) {
    return Grid{
        .blocks = blocks, .threads = threads, .shared_bytes = sizeof(float) * 4 * threads / kWarp};
  };
  if (cols <= kEach * kWarp) {
    const std::int64_t floats = kRowsAtATime * (with_bias ? 2 : 1) * cols;
    launch(norm_backward_kernel<T, kPacks, true, packed, with_bias>,
           {.blocks = blocks,
            .threads = {kWarp, kRowsAtATime},
            .shared_bytes = sizeof(float) * static_cast<std::size_t>(floats)},
           stream, task);
  } else if (cols <= kEach * kMostThreads) {
    launch(norm_backward_kernel<T, kPacks, false, packed, with_bias>,
           of_threads(threads_for(cols, kEach)), stream, task);
  } else {
    launch(norm_backward_kernel<T, 0, false, packed, with_bias>, of_threads(kMostThreads), stream,
           task);
  }
  if (a.partial == nullptr) return;
  const std::int64_t planes = with_bias ? 2 : 1;
  launch(add_partials_kernel,
         {.blocks = blocks_for(planes * cols, kWarp),
          .threads = {kWarp, kSumSlices},
          .shared_bytes = sizeof(float) * kWarp * kSumSlices},
         stream, static_cast<const float*>(a.partial), task.parts.blocks, cols, planes, a.dweight,
         a.dbias);
}

}  // namespace

template <class T>
void norm_backward(cudaStream_t stream, const NormBackward<T>& a) {
  const std::int64_t cols = a.x.cols;
  const bool packed = is_packed<T>(cols, a.dy, a.dresidual, a.x, a.dx, one_row_of(a.weight, cols));
  if (a.dbias != nullptr)
    packed ? norm_backward_of<T, true, true>(stream, a)
           : norm_backward_of<T, false, true>(stream, a);
  else
    packed ? norm_backward_of<T, true, false>(stream, a)
           : norm_backward_of<T, false, false>(stream, a);
}
template void norm_backward(cudaStream_t, const NormBackward<float>&);
template void norm_backward(cudaStream_t, const NormBackward<bf16>&);

}  // namespace sortie::trainer::ops::cuda
