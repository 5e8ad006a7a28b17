#include "trainer/ops/cuda/moe_router.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kWarps = 4;                // per block; each processes one row
constexpr std::size_t kRoom = 48 << 10;  // shared memory that all GPUs give a block
constexpr float kSigmoidFloor = 1e-20f;  // keeps the sum of k scores from being zero

__device__ __forceinline__ std::int64_t row_of_warp() {
  return (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
}
Grid grid_of_rows(std::int64_t rows, std::size_t bytes_per_row) {
  const int warps = kWarps * bytes_per_row <= kRoom ? kWarps : 1;  // one for many experts
  return {.blocks = blocks_for(rows, warps),
          .threads = static_cast<unsigned>(warps * kWarp),
          .shared_bytes = static_cast<std::size_t>(warps) * bytes_per_row};
}

/// Maps floats to unsigned numbers in the same order, so that a warp finds the largest with one
/// instruction. NaN is the largest, both zeros are one number, and no float is 0.
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

/// Takes the largest of orders [n] `count` <= n times; ties go to the lower index. out[j] is the
/// index of the j-th, whose order becomes kTaken. All lanes must call it; all see the results.
__device__ __forceinline__ void take_largest(unsigned* orders, int n, int count, int* out) {
  unsigned best = kTaken, best_at = 0;  // of this lane's orders
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
    if (at == best_at) {  // it was this lane's; the best of other lanes is still valid
      orders[at] = kTaken;
      out[j] = static_cast<int>(at);
      look();
    }
  }
  __syncwarp();
}

/// Shared memory of one row.
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

/// Excludes the choices of groups that are not kept.
__device__ __forceinline__ void leave_groups_out(const Routing& routing, const RowMemory& row) {
  const int size = routing.experts / routing.groups, lane = lane_of_thread();
  for (int group = lane; group < routing.groups; group += kWarp) {
    unsigned best = kTaken, second = kTaken;
    // Each lane begins at another element: groups are often as long as there are banks.
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

/// The sum of the chosen scores, by which the weights are divided, in the order of the choices.
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

/// Shared memory per row: scores [E], their gradients [E], what the choices add to them [k],
/// choices [k].
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
  // From here on a lane processes its own experts.
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

}  // namespace sortie::trainer::ops::cuda
