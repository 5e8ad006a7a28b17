#include "trainer/ops/cuda/tokens.h"

#include "trainer/ops/cuda/rows.h"
#include "trainer/ops/targets.h"

namespace sortie::trainer::ops::cuda {
namespace {

struct CountRows {
  std::int32_t first;
  Rows<std::int32_t> positions;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    positions.data[row * positions.stride + col] = first + static_cast<std::int32_t>(col);
  }
};

struct ShiftRows {
  Rows<const std::int32_t> tokens;
  const std::int32_t* starts;
  std::int64_t distance;
  std::int32_t missing;
  std::int32_t* shifted;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    const std::int64_t here = row * tokens.cols + col, there = here + distance;
    const bool is_there =
        col + distance < tokens.cols && (starts == nullptr || starts[there] == starts[here]);
    shifted[here] = is_there ? tokens.data[there] : missing;
  }
};

constexpr int kScanThreads = 512;
constexpr int kScanEach = 8;  // consecutive positions per thread

/// The largest value of this lane and the lanes before it.
__device__ __forceinline__ std::int32_t max_up_to_lane(std::int32_t value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const std::int32_t before = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(distance));
    if (lane >= distance && before > value) value = before;
  }
  return value;
}

/// A block per sequence, which it processes piece by piece: the start of a position's document is
/// the largest start up to it, a running maximum.
__global__ void __launch_bounds__(kScanThreads)
    find_starts_kernel(Rows<const std::int32_t> tokens, std::int32_t end,
                       const std::int32_t* targets, std::int32_t* starts, std::int32_t* positions) {
  constexpr int kWarps = kScanThreads / kWarp;
  auto* of_warps = shared_memory<std::int32_t>();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const std::int64_t first = std::int64_t{blockIdx.x} * tokens.cols;
  const std::int32_t* row = tokens.data + first;
  if (targets != nullptr) targets += first;
  starts += first;
  if (positions != nullptr) positions += first;
  std::int32_t carried = 0;
  for (std::int64_t piece = 0; piece < tokens.cols; piece += kScanThreads * kScanEach) {
    const std::int64_t place = piece + thread * kScanEach;
    std::int32_t found[kScanEach];
    std::int32_t latest = 0;
#pragma unroll
    for (int i = 0; i < kScanEach; ++i) {
      const std::int64_t at = place + i;
      if (at > 0 && at < tokens.cols &&
          (row[at - 1] == end || (targets != nullptr && targets[at - 1] == kDocumentEnds)))
        latest = static_cast<std::int32_t>(at);
      found[i] = latest;
    }
    const std::int32_t up_to_lane = max_up_to_lane(latest);
    if (lane == kWarp - 1) of_warps[warp] = up_to_lane;
    std::int32_t before = __shfl_up_sync(kAllLanes, up_to_lane, 1u);
    if (lane == 0) before = 0;
    __syncthreads();
    std::int32_t all = carried;
    before = before > carried ? before : carried;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      const std::int32_t value = of_warps[other];
      if (other < warp && value > before) before = value;
      if (value > all) all = value;
    }
    carried = all;
    __syncthreads();  // the next piece overwrites of_warps
#pragma unroll
    for (int i = 0; i < kScanEach; ++i) {
      const std::int64_t at = place + i;
      if (at >= tokens.cols) break;
      const std::int32_t start = found[i] > before ? found[i] : before;
      starts[at] = start;
      if (positions != nullptr) positions[at] = static_cast<std::int32_t>(at) - start;
    }
  }
}

}  // namespace

void count_rows(cudaStream_t stream, std::int32_t first, Rows<std::int32_t> positions) {
  for_each_pack<1>(stream, {positions.rows, positions.cols}, CountRows{first, positions});
}

void find_starts(cudaStream_t stream, Rows<const std::int32_t> tokens, std::int32_t end,
                 const std::int32_t* targets, std::int32_t* starts, std::int32_t* positions) {
  launch(find_starts_kernel,
         {.blocks = static_cast<unsigned>(tokens.rows),
          .threads = kScanThreads,
          .shared_bytes = sizeof(std::int32_t) * kScanThreads / kWarp},
         stream, tokens, end, targets, starts, positions);
}

void shift_rows(cudaStream_t stream, Rows<const std::int32_t> tokens, const std::int32_t* starts,
                std::int64_t distance, std::int32_t missing, std::int32_t* shifted) {
  for_each_pack<1>(stream, {tokens.rows, tokens.cols},
                   ShiftRows{tokens, starts, distance, missing, shifted});
}

}  // namespace sortie::trainer::ops::cuda
