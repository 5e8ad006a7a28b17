#include "trainer/ops/cuda/moe_router.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kWarps = 4;                // of a block; each has a row to itself
constexpr float kSigmoidFloor = 1e-20f;  // keeps the sum of k scores from being zero

__device__ __forceinline__ int lane_of_thread() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ __forceinline__ int warp_of_thread() {
  return static_cast<int>(threadIdx.x) / kWarp;
}
__device__ __forceinline__ std::int64_t row_of_warp() {
  return std::int64_t{blockIdx.x} * kWarps + warp_of_thread();
}
Grid grid_of_rows(std::int64_t rows, std::size_t bytes_per_row) {
  return {.blocks = blocks_for(rows, kWarps),
          .threads = kWarps * kWarp,
          .shared_bytes = kWarps * bytes_per_row};
}

/// Numbers in the order of the floats, so that a warp finds the largest by one instruction. A NaN
/// is the largest, both zeros are one number, and zero is no float's.
__device__ __forceinline__ unsigned order_of(float value) {
  if (value != value) return 0xffffffffu;
  const unsigned bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float float_of(unsigned order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}
constexpr unsigned kTaken = 0;
constexpr unsigned kLeftOut = 0x007fffffu;  // order_of(-infinity)

/// Takes the largest of orders [n] `count` <= n times, of equals the one in front: out[j] is the
/// j-th, and becomes kTaken. All lanes call it; all see the results.
__device__ __forceinline__ void take_largest(unsigned* orders, int n, int count, int* out) {
  unsigned best = kTaken, best_at = 0;  // of the lane's
  const auto look = [&] {
    best = kTaken;
    best_at = 0xffffffffu;
    for (int i = lane_of_thread(); i < n; i += kWarp)
      if (orders[i] > best) {
        best = orders[i];
        best_at = static_cast<unsigned>(i);
      }
  };
  look();
  for (int j = 0; j < count; ++j) {
    const unsigned largest = __reduce_max_sync(kAllLanes, best);
    const unsigned at = __reduce_min_sync(kAllLanes, best == largest ? best_at : 0xffffffffu);
    if (at == best_at) {  // of this lane; the others' best still stands
      orders[at] = kTaken;
      out[j] = static_cast<int>(at);
      look();
    }
  }
  __syncwarp();
}

/// What one row has in shared memory.
struct RowMemory {
  float* scores;     // [E]
  unsigned* orders;  // [E]
  unsigned* groups;  // [groups]
  int* taken;        // [max(k, kept_groups)]
};
__device__ __host__ __forceinline__ int taken_room(const Routing& routing) {
  return routing.top_k > routing.kept_groups ? routing.top_k : routing.kept_groups;
}
__device__ __host__ __forceinline__ int row_words(const Routing& routing) {
  return 2 * routing.experts + routing.groups + taken_room(routing);
}
__device__ __forceinline__ RowMemory row_memory(const Routing& routing) {
  auto* words = shared_memory<unsigned>() + warp_of_thread() * row_words(routing);
  unsigned* orders = words + routing.experts;
  unsigned* groups = orders + routing.experts;
  return {reinterpret_cast<float*>(words), orders, groups,
          reinterpret_cast<int*>(groups + routing.groups)};
}

/// Leaves the choices of groups that are not kept out.
__device__ __forceinline__ void leave_groups_out(const Routing& routing, const RowMemory& row) {
  const int size = routing.experts / routing.groups, lane = lane_of_thread();
  for (int group = lane; group < routing.groups; group += kWarp) {
    unsigned best = kTaken, second = kTaken;
    // Each lane begins elsewhere: groups are often as long as there are banks.
    for (int i = 0, at = lane % size; i < size; ++i, at = at + 1 < size ? at + 1 : 0) {
      const unsigned order = row.orders[group * size + at];
      second = order > best ? best : order > second ? order : second;
      best = order > best ? order : best;
    }
    row.groups[group] = order_of(size == 1 ? float_of(best) : float_of(best) + float_of(second));
  }
  __syncwarp();
  take_largest(row.groups, routing.groups, routing.kept_groups, row.taken);
  for (int e = lane; e < routing.experts; e += kWarp)
    if (row.groups[e / size] != kTaken) row.orders[e] = kLeftOut;
  __syncwarp();
}

/// Sum of the chosen scores, as the weights are divided by it, in the order of the choices.
__device__ __forceinline__ float chosen_sum(const Routing& routing, const float* scores,
                                            const int* chosen) {
  float sum = routing.sigmoid ? kSigmoidFloor : 0.0f;
  for (int j = 0; j < routing.top_k; ++j) sum += scores[chosen[j]];
  return sum;
}

__global__ void route_kernel(const Routing routing, const RouteForward tensors) {
  const std::int64_t index = row_of_warp();
  if (index >= tensors.rows) return;
  const RowMemory row = row_memory(routing);
  const int lane = lane_of_thread(), n = routing.experts, k = routing.top_k;
  const float* logits = tensors.logits + index * n;
  if (routing.sigmoid) {
    for (int e = lane; e < n; e += kWarp) row.scores[e] = 1.0f / (1.0f + expf(-logits[e]));
  } else {
    float largest = -INFINITY, sum = 0.0f;
    for (int e = lane; e < n; e += kWarp) {
      row.scores[e] = logits[e];
      largest = fmaxf(largest, logits[e]);
    }
    largest = warp_max(largest);
    for (int e = lane; e < n; e += kWarp) sum += row.scores[e] = expf(row.scores[e] - largest);
    sum = warp_sum(sum);
    for (int e = lane; e < n; e += kWarp) row.scores[e] /= sum;
  }
  for (int e = lane; e < n; e += kWarp) {
    tensors.scores[index * n + e] = row.scores[e];
    row.orders[e] = order_of(row.scores[e] + (tensors.bias != nullptr ? tensors.bias[e] : 0.0f));
  }
  __syncwarp();
  if (tensors.replay != nullptr) {
    for (int j = lane; j < k; j += kWarp) {
      row.taken[j] = tensors.replay[index * k + j];
      if (row.taken[j] < 0 || row.taken[j] >= n) __trap();
    }
    __syncwarp();
  } else {
    if (routing.kept_groups < routing.groups) leave_groups_out(routing, row);
    take_largest(row.orders, n, k, row.taken);
  }
  const float factor = routing.normalize
                           ? routing.scale / chosen_sum(routing, row.scores, row.taken)
                           : routing.scale;
  for (int j = lane; j < k; j += kWarp) {
    tensors.experts[index * k + j] = row.taken[j];
    tensors.weights[index * k + j] = row.scores[row.taken[j]] * factor;
  }
}

__global__ void top_kernel(Rows<const float> scores, int top_k, std::int32_t* experts) {
  const std::int64_t index = row_of_warp();
  if (index >= scores.rows) return;
  const int n = static_cast<int>(scores.cols);
  auto* orders = shared_memory<unsigned>() + warp_of_thread() * (n + top_k);
  int* taken = reinterpret_cast<int*>(orders + n);
  for (int e = lane_of_thread(); e < n; e += kWarp)
    orders[e] = order_of(scores.data[index * scores.stride + e]);
  __syncwarp();
  take_largest(orders, n, top_k, taken);
  for (int j = lane_of_thread(); j < top_k; j += kWarp) experts[index * top_k + j] = taken[j];
}

/// Shared memory per row: scores [E], their gradients [E], what the choices add [k], choices [k].
__global__ void route_backward_kernel(const Routing routing, const RouteBackward tensors) {
  const std::int64_t index = row_of_warp();
  if (index >= tensors.rows) return;
  const int lane = lane_of_thread(), n = routing.experts, k = routing.top_k;
  auto* score = shared_memory<float>() + warp_of_thread() * (2 * n + 2 * k);
  float *d = score + n, *added = d + n;
  int* chosen = reinterpret_cast<int*>(added + k);
  for (int e = lane; e < n; e += kWarp) {
    score[e] = tensors.scores[index * n + e];
    d[e] = tensors.dscores != nullptr ? tensors.dscores[index * n + e] : 0.0f;
  }
  for (int j = lane; j < k; j += kWarp) chosen[j] = tensors.experts[index * k + j];
  __syncwarp();
  if (tensors.dweights != nullptr) {
    const float* dw = tensors.dweights + index * k;
    const float sum = routing.normalize ? chosen_sum(routing, score, chosen) : 1.0f;
    for (int j = lane; j < k; j += kWarp) {
      float along = dw[j];
      if (routing.normalize) {
        // w_j = scale s_j / S: ds_j = scale / S^2 (S dw_j - sum_i dw_i s_i), in differences: one
        // dominant score would otherwise cancel all digits.
        along = routing.sigmoid ? dw[j] * kSigmoidFloor : 0.0f;
        for (int i = 0; i < k; ++i) along += (dw[j] - dw[i]) * score[chosen[i]];
        along = along / sum / sum;
      }
      added[j] = routing.scale * along;
    }
    __syncwarp();
    for (int j = 0; j < k; ++j)
      if (chosen[j] % kWarp == lane) d[chosen[j]] += added[j];
  }
  // From here on a lane has its own experts.
  float* out = tensors.dlogits + index * n;
  if (routing.sigmoid) {
    for (int e = lane; e < n; e += kWarp) out[e] = d[e] * (score[e] * (1.0f - score[e]));
    return;
  }
  float along = 0.0f;
  for (int e = lane; e < n; e += kWarp) along += d[e] * score[e];
  along = warp_sum(along);
  for (int e = lane; e < n; e += kWarp) out[e] = score[e] * (d[e] - along);
}

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

__global__ void balance_slope_kernel(Rows<const float> scores, const float* counts,
                                     std::int64_t length, float factor, float* dscores) {
  const std::int64_t row = row_of_warp();
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

/// A block per part and kWarp columns; each warp adds up rows that follow one another, then the
/// first adds up the warps.
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

constexpr int kSlopeRows = 16;  // per block

__global__ void load_slope_kernel(const double* assigned, double factor, Rows<float> dscores) {
  const std::int64_t col = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (col >= dscores.cols) return;
  const auto slope = static_cast<float>(factor * assigned[col]);
  const std::int64_t first = std::int64_t{blockIdx.x} * kSlopeRows;
  for (std::int64_t row = first; row < first + kSlopeRows && row < dscores.rows; ++row)
    dscores.data[row * dscores.stride + col] += slope;
}

__global__ void bias_kernel(Flat<const double> counts, float rate, float* bias) {
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

void route_rows(cudaStream_t stream, const Routing& routing, const RouteForward& tensors) {
  const std::size_t words = static_cast<std::size_t>(row_words(routing));
  launch(route_kernel, grid_of_rows(tensors.rows, words * 4), stream, routing, tensors);
}

void route_rows_backward(cudaStream_t stream, const Routing& routing,
                         const RouteBackward& tensors) {
  const auto words = static_cast<std::size_t>(2 * routing.experts + 2 * routing.top_k);
  launch(route_backward_kernel, grid_of_rows(tensors.rows, words * 4), stream, routing, tensors);
}

void top_experts(cudaStream_t stream, Rows<const float> scores, int top_k, std::int32_t* experts) {
  const auto words = static_cast<std::size_t>(scores.cols + top_k);
  launch(top_kernel, grid_of_rows(scores.rows, words * 4), stream, scores, top_k, experts);
}

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
  launch(balance_slope_kernel, grid_of_rows(scores.rows, 0), stream, scores, counts, length, factor,
         dscores);
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

void move_bias(cudaStream_t stream, Flat<const double> counts, float rate, float* bias) {
  launch(bias_kernel, {.blocks = 1, .threads = kThreads, .shared_bytes = kSumBytes}, stream, counts,
         rate, bias);
}

}  // namespace sortie::trainer::ops::cuda
