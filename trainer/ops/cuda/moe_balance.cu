#include "trainer/ops/cuda/moe_balance.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kWarps = 4;  // of a block

/// The sum of a row's scores, and of scores times counts, in T.
template <class T>
__device__ __forceinline__ void balance_sums(const float* score, const float* count, int experts,
                                             T& sum, T& along) {
  sum = along = T(0);
  for (int e = lane_of_thread(); e < experts; e += kWarp) {
    sum += static_cast<T>(score[e]);
    along += static_cast<T>(score[e]) * static_cast<T>(count[e]);
  }
  sum = warp_sum(sum);
  along = warp_sum(along);
}

/// A block per part; its warps take rows in turn.
__global__ void balance_kernel(Rows<const float> scores, const float* counts, std::int64_t length,
                               double* parts) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kRowsPerPart;
  double loss = 0.0;
  for (std::int64_t row = first + warp_of_thread(); row < first + kRowsPerPart && row < scores.rows;
       row += kWarps) {
    double sum, along;
    balance_sums(scores.data + row * scores.stride, counts + row / length * scores.cols,
                 static_cast<int>(scores.cols), sum, along);
    loss += along / sum;
  }
  loss = block_sum(lane_of_thread() == 0 ? loss : 0.0, shared_memory<double>());
  if (threadIdx.x == 0) parts[blockIdx.x] = loss;
}

__global__ void balance_slope_kernel(Rows<const float> scores, const float* __restrict__ counts,
                                     std::int64_t length, float factor,
                                     float* __restrict__ dscores) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp_of_thread();
  if (row >= scores.rows) return;
  const float* count = counts + row / length * scores.cols;
  const int n = static_cast<int>(scores.cols);
  float sum, along;
  balance_sums(scores.data + row * scores.stride, count, n, sum, along);
  for (int e = lane_of_thread(); e < n; e += kWarp)
    dscores[row * n + e] += factor / sum * (count[e] - along / sum);
}

/// total += factor * sum of a_i, or of a_i b_i; one block.
__global__ void dot_kernel(Flat<const double> a, const double* b, double factor, double* total) {
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < a.size; i += blockDim.x)
    sum += b != nullptr ? a.data[i] * b[i] : a.data[i];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) *total += factor * sum;
}

constexpr int kSumWarps = 8;

/// A block per part and kWarp columns. Each warp adds consecutive rows; then the first warp adds
/// the sums of all warps.
__global__ void column_parts_kernel(Rows<const float> matrix, double* parts) {
  constexpr int kRows = static_cast<int>(kRowsPerPart) / kSumWarps;
  const std::int64_t col = std::int64_t{blockIdx.y} * kWarp + lane_of_thread();
  const std::int64_t first = std::int64_t{blockIdx.x} * kRowsPerPart + warp_of_thread() * kRows;
  auto* sums = shared_memory<double>();
  double sum = 0.0;
  if (col < matrix.cols)
    for (std::int64_t row = first; row < first + kRows && row < matrix.rows; ++row)
      sum += static_cast<double>(matrix.data[row * matrix.stride + col]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp_of_thread() != 0 || col >= matrix.cols) return;
  for (int warp = 1; warp < kSumWarps; ++warp) sum += sums[warp * kWarp + lane_of_thread()];
  parts[std::int64_t{blockIdx.x} * matrix.cols + col] = sum;
}

__global__ void add_parts_kernel(const double* parts, std::int64_t count, Flat<double> sums) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= sums.size) return;
  double sum = 0.0;
  for (std::int64_t part = 0; part < count; ++part) sum += parts[part * sums.size + col];
  sums.data[col] += sum;
}

constexpr int kSlopeRows = 4;  // per block

__global__ void load_slope_kernel(const double* assigned, double factor, Rows<float> dscores) {
  const std::int64_t col = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (col >= dscores.cols) return;
  const auto slope = static_cast<float>(factor * assigned[col]);
  const std::int64_t first = std::int64_t{blockIdx.x} * kSlopeRows;
  for (std::int64_t row = first; row < first + kSlopeRows && row < dscores.rows; ++row)
    dscores.data[row * dscores.stride + col] += slope;
}

__global__ void bias_kernel(const float* gate, Flat<const double> counts, float rate,
                            float* bias) {
  if (*gate == 0.0f) return;
  double sum = 0.0;
  for (std::int64_t e = threadIdx.x; e < counts.size; e += blockDim.x) sum += counts.data[e];
  const double mean = block_sum(sum, shared_memory<double>()) / static_cast<double>(counts.size);
  for (std::int64_t e = threadIdx.x; e < counts.size; e += blockDim.x) {
    if (counts.data[e] < mean) bias[e] += rate;
    if (counts.data[e] > mean) bias[e] -= rate;
  }
}

constexpr int kThreads = 256;
/// One block, with block_sum()'s scratch.
constexpr std::size_t kSumBytes = kThreads / kWarp * sizeof(double);

}  // namespace

void add_sequence_balance(cudaStream_t stream, Rows<const float> scores, const float* counts,
                          std::int64_t length, double factor, Flat<double> parts, double* loss) {
  launch(balance_kernel,
         {.blocks = blocks_for(scores.rows, kRowsPerPart),
          .threads = kWarps * kWarp,
          .shared_bytes = kWarps * sizeof(double)},
         stream, scores, counts, length, parts.data);
  add_dot(stream, {parts.data, parts.size}, nullptr, factor, loss);
}

void add_sequence_balance_slope(cudaStream_t stream, Rows<const float> scores, const float* counts,
                                std::int64_t length, float factor, float* dscores) {
  launch(balance_slope_kernel,
         {.blocks = blocks_for(scores.rows, kWarps), .threads = kWarps * kWarp}, stream, scores,
         counts, length, factor, dscores);
}

void add_column_sums(cudaStream_t stream, Rows<const float> matrix, Flat<double> parts,
                     double* sums) {
  const unsigned part_count = blocks_for(matrix.rows, kRowsPerPart);
  constexpr int kBlock = kSumWarps * kWarp;
  launch(column_parts_kernel,
         {.blocks = {part_count, blocks_for(matrix.cols, kWarp)},
          .threads = kBlock,
          .shared_bytes = kBlock * sizeof(double)},
         stream, matrix, parts.data);
  launch(add_parts_kernel, {.blocks = blocks_for(matrix.cols, kThreads), .threads = kThreads},
         stream, parts.data, part_count, Flat<double>{sums, matrix.cols});
}

void add_dot(cudaStream_t stream, Flat<const double> a, const double* b, double factor,
             double* loss) {
  launch(dot_kernel, {.blocks = 1, .threads = kThreads, .shared_bytes = kSumBytes}, stream, a, b,
         factor, loss);
}

void add_load_balance_slope(cudaStream_t stream, const double* assigned, double factor,
                            Rows<float> dscores) {
  launch(load_slope_kernel,
         {.blocks = {blocks_for(dscores.rows, kSlopeRows), blocks_for(dscores.cols, kThreads)},
          .threads = kThreads},
         stream, assigned, factor, dscores);
}

void move_bias(cudaStream_t stream, const float* gate, Flat<const double> counts, float rate,
               float* bias) {
  launch(bias_kernel, {.blocks = 1, .threads = kThreads, .shared_bytes = kSumBytes}, stream, gate,
         counts, rate, bias);
}

}  // namespace sortie::trainer::ops::cuda
