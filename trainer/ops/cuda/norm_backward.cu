// One pass over memory for dx and the sums over rows: a block iterates over its rows with the sums
// of its columns in registers, and writes these once. A second kernel adds the blocks' sums in
// their order.
#include "trainer/ops/cuda/norm.h"
#include "trainer/ops/cuda/norm_rows.h"
#include "trainer/ops/cuda/tensor_core.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kEach = kNormColumns;

/// The sums of both values over a block, in every thread. Two places are used alternately, so that
/// one barrier is enough.
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

/// Shared memory in front of the rows: for sums over a block's threads, or for the sums of warps
/// that process a row each.
template <bool row_per_warp, bool with_bias>
__host__ __device__ __forceinline__ constexpr std::int64_t sums_bytes(int threads, std::int64_t cols) {
  const std::int64_t floats = row_per_warp ? kRowsAtATime * (with_bias ? 2 : 1) * cols
                                           : std::int64_t{4} * (threads / kWarp);
  return (floats * static_cast<std::int64_t>(sizeof(float)) + 15) / 16 * 16;
}

/// Shared memory of the ring: three operands of 16-byte packs for each thread and stage.
constexpr std::int64_t ring_bytes(int stages, int packs, int threads) {
  return std::int64_t{3} * stages * packs * 16 * threads;
}

template <class T>
struct NormBackwardTask {
  NormBackward<T> a;
  NormParts parts;
};

/// With g = dy * weight and z = (x - mean) * r:
///   dx = dresidual + r * (g - mean(g) [layer only] - z * mean(g z)).
/// `packs`: packs of x, dy, dresidual and the sums that a thread keeps; 0: none, and the sums are
/// in `partial` from the first row on. `stages`: rows that are in shared memory or being loaded,
/// each thread's part in its own place; 0: rows are read when they are needed.
template <class T, int packs, bool row_per_warp, bool packed, bool with_bias, int stages>
__global__ void __launch_bounds__(kMostThreads) norm_backward_kernel(NormBackwardTask<T> task) {
  static_assert(stages == 0 || (packed && packs > 0));
  constexpr int N = kPackOf<T>;
  constexpr int kUnrolled = packs > 0 ? packs : 1;
  constexpr int kPlanes = with_bias ? 2 : 1;
  const NormBackward<T>& a = task.a;
  const auto cols = static_cast<int>(a.x.cols), across = static_cast<int>(blockDim.x);
  const int step = (row_per_warp ? kWarp : across) * N;
  const int turns = packs > 0 ? packs : (cols + step - 1) / step;
  const int first = static_cast<int>(threadIdx.x) * N;
  const float share = 1.0f / static_cast<float>(cols);
  const std::int64_t begin = blockIdx.x * task.parts.rows_per_block;
  const std::int64_t rest = a.x.rows - begin;
  const std::int64_t end =
      begin + (rest < task.parts.rows_per_block ? rest : task.parts.rows_per_block);
  float* partial = a.partial + blockIdx.x * kPlanes * cols;
  BlockSums block_sums{shared_memory<float>()};

  Floats<N> sums[kPlanes][kUnrolled] = {};
  const std::int64_t next_row = row_per_warp ? blockDim.y : 1;
  const std::int64_t first_row = begin + (row_per_warp ? threadIdx.y : 0);
  enum Operand { kDy, kX, kDirect, kOperands };
  const auto row_of = [&](Operand operand, std::int64_t row) {
    const auto at = [&](const Rows<const T>& rows) { return rows.data + row * rows.stride; };
    return operand == kDy ? at(a.dy) : operand == kX ? at(a.x) : at(a.dresidual);
  };
  const int operands = a.dresidual.data != nullptr ? kOperands : kDirect;
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  Pack<T, N>* const ring = reinterpret_cast<Pack<T, N>*>(shared_memory<unsigned char>() +
                                                         sums_bytes<row_per_warp, with_bias>(
                                                             threads, cols)) +
                           threadIdx.y * blockDim.x + threadIdx.x;
  const auto place = [&](int stage, int operand, int i) {
    return ring + ((stage * kOperands + operand) * packs + i) * threads;
  };
  int next_stage = 0;
  const auto begin_row = [&](std::int64_t row) {
    if (row < end)
      for (int operand = 0; operand < operands; ++operand) {
        const T* from = row_of(static_cast<Operand>(operand), row);
#pragma unroll
        for (int i = 0; i < packs; ++i)
          if (first + i * step < cols)
            cp_async_16(place(next_stage, operand, i), from + first + i * step);
      }
    cp_async_commit();
    next_stage = next_stage + 1 < stages ? next_stage + 1 : 0;
  };
  if constexpr (stages > 0)
    for (int ahead = 0; ahead < stages - 1; ++ahead) begin_row(first_row + ahead * next_row);
  float next_mean = 0.0f, next_reciprocal = 0.0f;
  const auto begin_stats = [&](std::int64_t row) {
    if (row >= end) return;
    next_mean = a.stats[2 * row];
    next_reciprocal = a.stats[2 * row + 1];
  };
  begin_stats(first_row);
  int stage = 0;
  for (std::int64_t row = first_row; row < end; row += next_row) {
    T* dx_row = a.dx.data + row * a.dx.stride;
    const float mean = next_mean, reciprocal = next_reciprocal;
    begin_stats(row + next_row);
    Pack<T, N> dy_kept[kUnrolled], x_kept[kUnrolled], direct_kept[kUnrolled];
    float sum_g = 0.0f, sum_gz = 0.0f;
    const auto read = [&](int at, int col, bool with_direct) {
      const auto from = [&](Operand operand) {
        if constexpr (stages > 0)
          return *place(stage, operand, at);
        else
          return read_columns<packed>(row_of(operand, row), col, cols);
      };
      dy_kept[at] = from(kDy);
      x_kept[at] = from(kX);
      if (with_direct && operands == kOperands) direct_kept[at] = from(kDirect);
    };
    if constexpr (stages > 0) {
      begin_row(row + (stages - 1) * next_row);
      cp_async_wait<(stages > 0 ? stages : 1) - 1>();
    }
    if constexpr (packs > 0) {
#pragma unroll
      for (int i = 0; i < packs; ++i)
        if (stages > 0 || first + i * step < cols) read(i, first + i * step, true);
    }
    stage = stage + 1 < stages ? stage + 1 : 0;
#pragma unroll kUnrolled
    for (int i = 0; i < turns; ++i) {
      const int col = first + i * step;
      if (col >= cols) break;
      const int at = packs > 0 ? i : 0;
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
    for (int i = 0; i < turns; ++i) {
      const int col = first + i * step;
      if (col >= cols) break;
      const int at = packs > 0 ? i : 0;
      if constexpr (packs == 0) read(0, col, true);
      const Floats<N> weight = read_floats<packed, N>(a.weight, col, cols);
      Floats<N> result;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float g = to_float(dy_kept[at].values[j]) * weight.values[j];
        const float z = (to_float(x_kept[at].values[j]) - mean) * reciprocal;
        result.values[j] = reciprocal * (g - mean_g - z * mean_gz);
        if (operands == kOperands) result.values[j] += to_float(direct_kept[at].values[j]);
      }
      write_columns<packed>(dx_row, col, cols, result);
    }
  }

  if (packs == 0 || a.partial == nullptr) return;
  if constexpr (row_per_warp) {
    // Adds the warps' sums in their order.
    float* all = shared_memory<float>();
    float* mine = all + threadIdx.y * kPlanes * cols;
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
      for (int i = 0; i < packs; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const int col = first + i * step + j;
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
      const int col = first + i * step;
      if (col >= cols) break;
      write_columns<packed>(partial, col, cols, sums[0][i]);
      if constexpr (with_bias) write_columns<packed>(partial + cols, col, cols, sums[1][i]);
    }
  }
}

constexpr int kSumSlices = 16;

/// A block takes kWarp columns of all blocks' sums; each of its warps takes every kSumSlices-th
/// block.
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
  // As many rows as leave room for other blocks on all GPUs.
  constexpr bool kNarrow = sizeof(T) < sizeof(float);
  constexpr int kStages = packed ? (kNarrow ? 4 : 2) : 0;
  constexpr int kStagesOfWide = packed ? (kNarrow ? 2 : 1) : 0, kWide = 256;
  // The least that a block may have of shared memory on the supported GPUs (8.6, 8.9 and 12.0).
  constexpr std::int64_t kMostShared = 101376;
  static_assert(ring_bytes(kStages, kPacks, kWide) + sums_bytes<false, true>(kWide, 0) <=
                kMostShared);
  static_assert(ring_bytes(kStagesOfWide, kPacks, kMostThreads) +
                    sums_bytes<false, true>(kMostThreads, 0) <=
                kMostShared);
  static_assert(ring_bytes(kStages, kPacks, kWarp * kRowsAtATime) +
                    sums_bytes<true, true>(0, kEach * kWarp) <=
                kMostShared);
  const std::int64_t cols = a.x.cols;
  const NormBackwardTask<T> task{a, norm_parts(a.x.rows, cols)};
  const auto run = [&]<int packs, bool row_per_warp, int stages>(dim3 block) {
    const auto threads = static_cast<int>(block.x * block.y);
    const auto ring = static_cast<std::size_t>(ring_bytes(stages, packs, threads));
    launch(norm_backward_kernel<T, packs, row_per_warp, packed, with_bias, stages>,
           {.blocks = static_cast<unsigned>(task.parts.blocks),
            .threads = block,
            .shared_bytes = static_cast<std::size_t>(
                                sums_bytes<row_per_warp, with_bias>(threads, cols)) +
                            ring},
           stream, task);
  };
  if (cols <= kEach * kWarp)
    run.template operator()<kPacks, true, kStages>({kWarp, kRowsAtATime});
  else if (cols <= kEach * kWide)
    run.template operator()<kPacks, false, kStages>(threads_for(cols, kEach));
  else if (cols <= kEach * kMostThreads)
    run.template operator()<kPacks, false, kStagesOfWide>(threads_for(cols, kEach));
  else
    run.template operator()<0, false, 0>(kMostThreads);
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
