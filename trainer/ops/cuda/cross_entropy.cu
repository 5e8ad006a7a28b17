#include "trainer/ops/cuda/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/rows.h"
#include "trainer/ops/cuda/tensor_core.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kPack = static_cast<int>(kHeadPack);
constexpr int kMaxThreads = 512;
constexpr int kMaxWarps = kMaxThreads / kWarp;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// The largest logit of a row, and the sum of exp(logit - largest).
struct Softmax {
  float max, sum;
};

/// Factor of a row's gradients.
__device__ __forceinline__ float scale_of(const HeadRows& head) {
  return head.step_scale == nullptr ? head.grad_scale : *head.step_scale * head.grad_scale;
}

/// Loads kPack logits from `col` on; those from `columns` on are -infinity.
__device__ __forceinline__ void load_logits(const float* row, int col, int columns,
                                            float (&values)[kPack]) {
  const auto pack = *reinterpret_cast<const Pack<float, kPack>*>(row + col);
#pragma unroll
  for (int i = 0; i < kPack; ++i) values[i] = pack.values[i];
  if (col + kPack <= columns) return;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (col + i >= columns) values[i] = -kInfinity;
}

/// A block's shared memory: numbers of the warps, followed by the first columns of its row.
constexpr std::size_t kScratchBytes = 2 * kMaxWarps * sizeof(float);
__device__ __forceinline__ float* kept_logits() {
  return shared_memory<float>() + kScratchBytes / sizeof(float);
}

/// The softmax of the block's row, in every thread. The sum is NaN if a logit is NaN or +infinity,
/// because a difference of infinities is. The first `kept` columns, a multiple of kPack, are copied
/// to kept_logits() while the others are read.
__device__ __forceinline__ Softmax softmax_of_row(const float* row, int columns, int kept) {
  const int threads = static_cast<int>(blockDim.x);
  const int first = static_cast<int>(threadIdx.x) * kPack, step = threads * kPack;
  auto* scratch = shared_memory<float>();
  for (int col = first; col < kept; col += step) {
    cp_async_16(kept_logits() + col, row + col);
    cp_async_16(kept_logits() + col + kPack / 2, row + col + kPack / 2);
  }
  cp_async_commit();
  float max = -kInfinity, sum = 0.0f;
  const auto add = [&](const float(&values)[kPack]) {
    float largest = values[0];
#pragma unroll
    for (int i = 1; i < kPack; ++i) largest = fmaxf(largest, values[i]);
    if (largest > max) {
      sum *= exp_fast(max - largest);
      max = largest;
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += exp_fast(values[i] - max);
  };
  float values[kPack];
#pragma unroll 2
  for (int col = kept + first; col < columns; col += step) {
    load_logits(row, col, columns, values);
    add(values);
  }
  cp_async_wait<0>();
  for (int col = first; col < kept; col += step) {
    load_logits(kept_logits(), col, columns, values);
    add(values);
  }
  const auto against = [](float of, float largest) {
    return of == largest ? 1.0f : exp_fast(of - largest);
  };
  const float warp = warp_max(max);
  sum = warp_sum(sum * against(max, warp));
  if (threadIdx.x % kWarp == 0) {
    scratch[threadIdx.x / kWarp] = warp;
    scratch[kMaxWarps + threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  Softmax all{scratch[0], 0.0f};
  for (int i = 1; i < threads / kWarp; ++i) all.max = fmaxf(all.max, scratch[i]);
  for (int i = 0; i < threads / kWarp; ++i)
    all.sum += scratch[kMaxWarps + i] * against(scratch[i], all.max);
  return all;
}

/// A block per row. It reads the row, keeps the first `kept` columns in shared memory, and reads
/// the others again from the end on, while they are in the L2 cache.
template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    softmax_kernel(HeadRows head, const float* logits, std::int64_t line, double* losses,
                   T* gradients, std::int64_t gradient_line, int kept) {
  const std::int64_t row = blockIdx.x;
  const int step = static_cast<int>(blockDim.x) * kPack,
            own_col = static_cast<int>(threadIdx.x) * kPack;
  const int columns = static_cast<int>(head.columns);
  const std::int32_t target = head.targets[row];
  const bool known = target < head.vocab_size;
  const int padded = (columns + kPack - 1) / kPack * kPack;
  T* out = gradients + row * gradient_line;
  if (target < 0) {
    if (threadIdx.x == 0) losses[row] = 0.0;
    if (gradients == nullptr) return;
    const Pack<T, kPack> zeros{};
    for (int col = own_col; col < padded; col += step)
      *reinterpret_cast<Pack<T, kPack>*>(out + col) = zeros;
    return;
  }
  const float* in = logits + row * line;
  const float own = threadIdx.x == 0 && known ? in[target] : 0.0f;
  const Softmax softmax = softmax_of_row(in, columns, kept);
  if (threadIdx.x == 0)
    losses[row] = known ? static_cast<double>(softmax.max) + log(static_cast<double>(softmax.sum)) -
                              static_cast<double>(own)
                        : kNaN;
  if (gradients == nullptr) return;
  const float scale = scale_of(head),
              factor = known ? scale / softmax.sum : static_cast<float>(kNaN);
  const auto store_gradients = [&](int col, const float(&values)[kPack]) {
    Floats<kPack> of;
#pragma unroll
    for (int i = 0; i < kPack; ++i) of.values[i] = exp_fast(values[i] - softmax.max) * factor;
    if (const int at = target - col; at >= 0 && at < kPack) {
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (i == at) of.values[i] -= scale;
    }
    if (col + kPack > columns) {
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (col + i >= columns) of.values[i] = 0.0f;
    }
    store<kPack>(out + col, of);
  };
  // Gradients of these columns overwrite logits of these or later columns, which all threads have
  // read before the barrier.
  const int first = kept + own_col;
  int base = padded > kept ? (padded - kept - 1) / step * step : -1;
  float values[kPack] = {};
  if (base >= 0 && first + base < padded) load_logits(in, first + base, columns, values);
  for (; base >= 0; base -= step) {
    float next[kPack] = {};
    if (base > 0) load_logits(in, first + base - step, columns, next);
    __syncthreads();
    if (first + base < padded) store_gradients(first + base, values);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = next[i];
  }
  for (int col = own_col; col < kept; col += step) {
    load_logits(kept_logits(), col, columns, values);
    store_gradients(col, values);
  }
}

/// A block per row.
template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads)
    exponentials_kernel(HeadRows head, const float* logits, std::int64_t line, double* stats,
                        T* exponentials, std::int64_t exponential_line) {
  const std::int64_t row = blockIdx.x;
  const int threads = static_cast<int>(blockDim.x);
  const std::int32_t target = head.targets[row];
  const float* in = logits + row * line;
  double* mine = stats + 3 * row;
  if (target < 0) {
    if (threadIdx.x < 3) mine[threadIdx.x] = 0.0;
    return;
  }
  const Softmax softmax = softmax_of_row(in, static_cast<int>(head.columns), 0);
  if (threadIdx.x == 0) {
    const std::int64_t own = target - head.first;
    mine[0] = static_cast<double>(softmax.max);
    mine[1] = static_cast<double>(softmax.sum);
    mine[2] = own >= 0 && own < head.columns ? static_cast<double>(in[own]) : 0.0;
  }
  if (exponentials == nullptr) return;
  T* out = exponentials + row * exponential_line;
  for (std::int64_t col = threadIdx.x * N; col < head.columns; col += threads * N) {
    const auto from = *reinterpret_cast<const Pack<float, N>*>(in + col);
    Pack<T, N> to;
#pragma unroll
    for (int i = 0; i < N; ++i) to.values[i] = from_float<T>(exp_fast(from.values[i] - softmax.max));
    *reinterpret_cast<Pack<T, N>*>(out + col) = to;
  }
}

constexpr int kJoinThreads = 128;

/// A thread per row.
__global__ void join_kernel(HeadRows head, const double* stats, std::int64_t parts,
                            const double* own, double* losses, float* factors) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x;
  if (row >= head.rows) return;
  const std::int32_t target = head.targets[row];
  if (target < 0) {
    losses[row] = 0.0;
    factors[row] = 0.0f;
    return;
  }
  const auto of = [&](std::int64_t part, int what) {
    return stats[(part * head.rows + row) * 3 + what];
  };
  double max = of(0, 0), sum = 0.0, logit = 0.0;
  for (std::int64_t part = 1; part < parts; ++part) max = fmax(max, of(part, 0));
  for (std::int64_t part = 0; part < parts; ++part) {
    sum += of(part, 1) * exp(of(part, 0) - max);
    logit += of(part, 2);
  }
  const double log_sum = target < head.vocab_size ? max + log(sum) : kNaN;
  losses[row] = log_sum - logit;
  factors[row] = static_cast<float>(exp(own[3 * row] - log_sum));
}

/// A block per row.
template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads)
    part_gradients_kernel(HeadRows head, const float* factors, T* exponentials,
                          std::int64_t exponential_line) {
  const std::int64_t row = blockIdx.x;
  const int threads = static_cast<int>(blockDim.x);
  const std::int32_t target = head.targets[row];
  const std::int64_t own = target - head.first;
  const float factor = factors[row], scale = scale_of(head);
  T* line = exponentials + row * exponential_line;
  for (std::int64_t col = threadIdx.x * N; col < head.columns; col += threads * N) {
    auto* const at = reinterpret_cast<Pack<T, N>*>(line + col);
    Pack<T, N> pack = *at;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      // From the probability before rounding: p - 1 cancels if p is close to 1.
      const float probability = to_float(pack.values[i]) * factor;
      const float gradient = (probability - (col + i == own ? 1.0f : 0.0f)) * scale;
      pack.values[i] = from_float<T>(target >= 0 && col + i < head.columns ? gradient : 0.0f);
    }
    *at = pack;
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    add_losses_kernel(const double* __restrict__ losses, const std::int32_t* __restrict__ targets,
                      std::int64_t rows, double loss_scale, double* loss) {
  double sum = 0.0, count = 0.0;
#pragma unroll 4
  for (std::int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    sum += losses[row];
    count += targets[row] >= 0 ? 1.0 : 0.0;
  }
  auto* scratch = shared_memory<double>();
  sum = block_sum(sum, scratch);
  count = block_sum(count, scratch);
  if (threadIdx.x != 0) return;
  loss[0] += loss_scale * sum;
  loss[1] += count;
}

constexpr int kFewThreads = 128;

/// A block per row and kFewThreads * N columns.
template <class T, int N>
__global__ void __launch_bounds__(kFewThreads)
    few_products_kernel(Rows<const T> x, Rows<const T> w, Rows<const float> sums, Rows<T> y) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t col = (std::int64_t{blockIdx.y} * kFewThreads + threadIdx.x) * N;
  if (col >= y.cols) return;
  float result[N] = {};
  if (sums.data != nullptr) {
    const auto pack = *reinterpret_cast<const Pack<float, N>*>(sums.data + row * sums.stride + col);
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = pack.values[i];
  }
  for (std::int64_t k = 0; k < x.cols; ++k) {
    const float factor = to_float(x.data[row * x.stride + k]);
    const auto pack = *reinterpret_cast<const Pack<T, N>*>(w.data + k * w.stride + col);
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] += factor * to_float(pack.values[i]);
  }
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.values[i] = from_float<T>(result[i]);
  *reinterpret_cast<Pack<T, N>*>(y.data + row * y.stride + col) = pack;
}

/// A block per row, with at least two packs per thread.
Grid block_per_row(const HeadRows& head) {
  const auto warps = blocks_for(head.columns, 2 * kHeadPack * kWarp);
  return {.blocks = static_cast<unsigned>(head.rows),
          .threads = kWarp * std::clamp(warps, 1u, static_cast<unsigned>(kMaxWarps)),
          .shared_bytes = kScratchBytes};
}

template <class T>
bool packs(const T* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Pack<T, kPack>) == 0 &&
         stride % kPack == 0;
}

}  // namespace

template <class T>
void softmax_losses(cudaStream_t stream, const HeadRows& rows, const float* logits,
                    std::int64_t line, std::size_t shared_bytes, double* losses, T* gradients,
                    std::int64_t gradient_line) {
  Grid grid = block_per_row(rows);
  std::int64_t kept = 0;
  if (gradients != nullptr && shared_bytes > grid.shared_bytes) {
    const auto most = static_cast<std::int64_t>((shared_bytes - grid.shared_bytes) / sizeof(float));
    kept = std::min(most / kPack * kPack, line);
    grid.shared_bytes += static_cast<std::size_t>(kept) * sizeof(float);
  }
  launch(softmax_kernel<T>, grid, stream, rows, logits, line, losses, gradients, gradient_line,
         static_cast<int>(kept));
}
template void softmax_losses(cudaStream_t, const HeadRows&, const float*, std::int64_t, std::size_t,
                             double*, float*, std::int64_t);
template void softmax_losses(cudaStream_t, const HeadRows&, const float*, std::int64_t, std::size_t,
                             double*, bf16*, std::int64_t);

template <class T>
void part_exponentials(cudaStream_t stream, const HeadRows& rows, const float* logits,
                       std::int64_t line, double* stats, T* exponentials,
                       std::int64_t exponential_line) {
  launch(packs(exponentials, exponential_line) ? exponentials_kernel<T, kPack>
                                               : exponentials_kernel<T, 1>,
         block_per_row(rows), stream, rows, logits, line, stats, exponentials, exponential_line);
}
template void part_exponentials(cudaStream_t, const HeadRows&, const float*, std::int64_t, double*,
                                float*, std::int64_t);
template void part_exponentials(cudaStream_t, const HeadRows&, const float*, std::int64_t, double*,
                                bf16*, std::int64_t);

void join_stats(cudaStream_t stream, const HeadRows& rows, const double* stats, std::int64_t parts,
                const double* own, double* losses, float* factors) {
  launch(join_kernel, {.blocks = blocks_for(rows.rows, kJoinThreads), .threads = kJoinThreads},
         stream, rows, stats, parts, own, losses, factors);
}

template <class T>
void part_gradients(cudaStream_t stream, const HeadRows& rows, const float* factors,
                    T* exponentials, std::int64_t exponential_line) {
  launch(packs(exponentials, exponential_line) ? part_gradients_kernel<T, kPack>
                                               : part_gradients_kernel<T, 1>,
         block_per_row(rows), stream, rows, factors, exponentials, exponential_line);
}
template void part_gradients(cudaStream_t, const HeadRows&, const float*, float*, std::int64_t);
template void part_gradients(cudaStream_t, const HeadRows&, const float*, bf16*, std::int64_t);

void add_losses(cudaStream_t stream, const double* losses, const std::int32_t* targets,
                std::int64_t rows, double loss_scale, double* loss) {
  const unsigned threads =
      kWarp * std::clamp(blocks_for(rows, kWarp), 1u, static_cast<unsigned>(kMaxWarps));
  launch(add_losses_kernel,
         {.blocks = 1, .threads = threads, .shared_bytes = kMaxWarps * sizeof(double)}, stream,
         losses, targets, rows, loss_scale, loss);
}

template <class T>
void add_few_products(cudaStream_t stream, Rows<const T> x, Rows<const T> w, Rows<const float> sums,
                      Rows<T> y) {
  const bool aligned = packs(w.data, w.stride) && packs(sums.data, sums.stride) &&
                       packs(y.data, y.stride) && y.cols % kPack == 0;
  const auto start = [&](auto* kernel, int width) {
    launch(kernel,
           {.blocks = {static_cast<unsigned>(y.rows), blocks_for(y.cols, kFewThreads * width)},
            .threads = kFewThreads},
           stream, x, w, sums, y);
  };
  if (aligned)
    start(few_products_kernel<T, kPack>, kPack);
  else
    start(few_products_kernel<T, 1>, 1);
}
template void add_few_products(cudaStream_t, Rows<const float>, Rows<const float>,
                               Rows<const float>, Rows<float>);
template void add_few_products(cudaStream_t, Rows<const bf16>, Rows<const bf16>, Rows<const float>,
                               Rows<bf16>);

}  // namespace sortie::trainer::ops::cuda
