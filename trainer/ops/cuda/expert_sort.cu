#include "trainer/ops/cuda/expert_sort.h"

#include <algorithm>

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

// Counting and sorting, chunk by chunk. A warp processes kWarp choices at a time, in their order,
// and the lanes with the same expert find each other. No two warps count in the same memory.

constexpr int kSteps = kChoiceSteps;  // of a warp
constexpr int kChoicesPerWarp = kSteps * kWarp;

std::int64_t chunks_per_segment(const Choices& choices) {
  return choice_chunks(choices.count, choices.segments, choices.experts);
}
Grid grid_of_chunks(const Choices& choices) {
  const int warps = choice_warps(choices.experts);
  return {.blocks = static_cast<unsigned>(chunks_per_segment(choices) * choices.segments),
          .threads = static_cast<unsigned>(warps * kWarp),
          .shared_bytes = static_cast<std::size_t>(warps * choices.experts) * sizeof(int)};
}

/// The warp's choices: lane i holds the i-th of each kWarp in a row; -1 past the segment's end.
struct WarpChoices {
  int mine[kSteps];
  std::int64_t first;  // index of the lane's first one

  __device__ __forceinline__ WarpChoices(const Choices& choices, std::int64_t chunks) {
    const std::int64_t length = choices.count / choices.segments;
    const std::int64_t warps = blockDim.x / kWarp;
    const std::int64_t segment = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const std::int64_t in_segment =
        (chunk * warps + warp_of_thread()) * kChoicesPerWarp + lane_of_thread();
    first = segment * length + in_segment;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool there = in_segment + step * kWarp < length;
      mine[step] = there ? choices.data[first + step * kWarp] : -1;
      if (there && (mine[step] < (choices.limited ? -1 : 0) || mine[step] >= choices.experts))
        __trap();
    }
  }
};

/// Continues counting in counters [E], which belong to the warp. Calls visit(step, count before)
/// for each of the lane's choices.
template <class Visit>
__device__ __forceinline__ void count_in_order(const WarpChoices& choices, int* counters,
                                               const Visit& visit) {
  const unsigned before = (1u << lane_of_thread()) - 1;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int expert = choices.mine[step];
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const int start = expert >= 0 ? counters[expert] : 0;
    if (expert >= 0) visit(step, start + __popc(same & before));
    __syncwarp();
    if (expert >= 0 && (same & before) == 0) counters[expert] = start + __popc(same);
    __syncwarp();
  }
}

/// counters [warps, E] = counts of each warp's choices.
__device__ __forceinline__ void count_by_warp(const WarpChoices& choices, int experts,
                                              int* counters) {
  int* own = counters + warp_of_thread() * experts;
  for (int e = lane_of_thread(); e < experts; e += kWarp) own[e] = 0;
  __syncwarp();
  count_in_order(choices, own, [](int, int) {});
}

__global__ void count_kernel(const Choices choices, std::int64_t chunks, std::int32_t* counts) {
  auto* counters = shared_memory<int>();
  count_by_warp(WarpChoices(choices, chunks), choices.experts, counters);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < choices.experts;
       e += static_cast<int>(blockDim.x)) {
    int sum = 0;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp)
      sum += counters[warp * choices.experts + e];
    counts[std::int64_t{blockIdx.x} * choices.experts + e] = sum;
  }
}

/// totals [segments, E]
template <class T>
__global__ void total_kernel(const std::int32_t* counts, std::int64_t chunks, Flat<T> totals,
                             int experts) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= totals.size) return;
  const std::int32_t* of_segment = counts + i / experts * chunks * experts + i % experts;
  std::int64_t sum = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += of_segment[chunk * experts];
  totals.data[i] = static_cast<T>(sum);
}

/// starts [segments, chunks, E]: number of the expert's choices that are earlier in the sequence;
/// late [segments, E]: number of those beyond its capacity.
__global__ void segment_starts_kernel(const std::int32_t* counts, std::int64_t chunks, int experts,
                                      const ExpertLimit limit, std::int32_t* starts,
                                      Flat<std::int32_t> late) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= late.size) return;
  const std::int64_t segment = i / experts, expert = i % experts;
  const std::int64_t first = segment * chunks * experts + expert;
  int before = 0;
  if (limit.before != nullptr) {
    const std::int64_t sequences = late.size / experts / limit.parts;
    const std::int64_t place = segment % limit.parts * sequences + segment / limit.parts;
    before = static_cast<int>(limit.before[place * experts + expert]);
  }
  int sum = before;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    starts[first + chunk * experts] = sum;
    sum += counts[first + chunk * experts];
  }
  late.data[i] = max(sum - max(before, limit.capacity), 0);
}

/// One block. The sums are of integers, so the order of additions does not matter.
__global__ void add_late_kernel(Flat<const std::int32_t> late, double* dropped) {
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < late.size; i += blockDim.x) sum += late.data[i];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) *dropped += sum;
}

/// Converts counters [warps, E] from counts to the number of choices before the warp's, starting
/// with `before`(e), the number before the block.
template <class Before>
__device__ __forceinline__ void start_counters(int experts, int* counters, const Before& before) {
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    int next = before(e);
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
      int& counter = counters[warp * experts + e];
      const int count = counter;
      counter = next;
      next += count;
    }
  }
}

/// Keeps every choice with fewer than `capacity` choices of its expert earlier in the sequence.
__global__ void keep_kernel(const Choices choices, std::int64_t chunks, int capacity,
                            const std::int32_t* starts, std::int32_t* kept) {
  const WarpChoices mine(choices, chunks);
  auto* counters = shared_memory<int>();
  count_by_warp(mine, choices.experts, counters);
  __syncthreads();
  const std::int32_t* own = starts + std::int64_t{blockIdx.x} * choices.experts;
  start_counters(choices.experts, counters, [&](int e) { return own[e]; });
  __syncthreads();
  count_in_order(mine, counters + warp_of_thread() * choices.experts, [&](int step, int earlier) {
    kept[mine.first + step * kWarp] = earlier < capacity ? mine.mine[step] : -1;
  });
}

/// One block: writes begin, the padding's sources, and starts [chunks, E], the number of the
/// expert's choices in earlier chunks. Shared memory: [E] counts.
__global__ void begin_kernel(const std::int32_t* __restrict__ counts, std::int64_t chunks,
                             const SortedRows rows, std::int32_t* __restrict__ starts) {
  auto* totals = shared_memory<int>();
  const int experts = rows.experts, threads = static_cast<int>(blockDim.x);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += threads) {
    int sum = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      starts[chunk * experts + e] = sum;
      sum += counts[chunk * experts + e];
    }
    totals[e] = sum;
  }
  __syncthreads();
  const int lane = lane_of_thread();
  if (warp_of_thread() == 0) {
    std::int64_t before = 0;
    for (int first = 0; first < experts; first += kWarp) {
      const int e = first + lane;
      std::int64_t sum =
          e < experts ? (totals[e] + rows.unit - 1) / rows.unit * rows.unit : std::int64_t{0};
      const std::int64_t own = sum;
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const std::int64_t other = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(distance));
        if (lane >= distance) sum += other;
      }
      if (e < experts) rows.begin[e] = before + sum - own;
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
    if (lane == 0) rows.begin[experts] = before;
  }
  __syncthreads();
  for (int e = warp_of_thread(); e < experts; e += threads / kWarp)
    for (std::int64_t row = rows.begin[e] + totals[e] + lane; row < rows.begin[e + 1]; row += kWarp)
      rows.source[row] = -1;
}

/// Assigns the next row of its expert to every choice.
__global__ void place_kernel(const Choices choices, const SortedRows rows,
                             const std::int32_t* starts) {
  const WarpChoices mine(choices, gridDim.x);
  auto* counters = shared_memory<int>();
  count_by_warp(mine, choices.experts, counters);
  __syncthreads();
  const std::int32_t* own = starts + std::int64_t{blockIdx.x} * choices.experts;
  start_counters(choices.experts, counters,
                 [&](int e) { return static_cast<int>(rows.begin[e]) + own[e]; });
  __syncthreads();
  count_in_order(mine, counters + warp_of_thread() * choices.experts, [&](int step, int row) {
    const std::int64_t choice = mine.first + step * kWarp;
    rows.row_of[choice] = row;
    rows.source[row] = static_cast<std::int32_t>(choice);
  });
  if (!choices.limited) return;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t choice = mine.first + step * kWarp;
    if (mine.mine[step] < 0 && choice < choices.count) rows.row_of[choice] = -1;
  }
}

}  // namespace

template <class T>
void count_experts(cudaStream_t stream, const Choices& choices, std::int32_t* chunk_counts,
                   T* counts) {
  constexpr int kThreads = 256;
  const std::int64_t chunks = chunks_per_segment(choices);
  launch(count_kernel, grid_of_chunks(choices), stream, choices, chunks, chunk_counts);
  const Flat<T> totals{counts, choices.segments * choices.experts};
  launch(total_kernel<T>, {.blocks = blocks_for(totals.size, kThreads), .threads = kThreads},
         stream, chunk_counts, chunks, totals, choices.experts);
}
template void count_experts(cudaStream_t, const Choices&, std::int32_t*, float*);
template void count_experts(cudaStream_t, const Choices&, std::int32_t*, double*);

void limit_experts(cudaStream_t stream, const Choices& choices, const ExpertLimit& limit,
                   std::int32_t* chunk_counts, std::int32_t* starts, std::int32_t* late,
                   std::int32_t* kept, double* dropped) {
  constexpr int kThreads = 256;
  const std::int64_t chunks = chunks_per_segment(choices);
  const std::int64_t counters = choices.segments * choices.experts;
  launch(count_kernel, grid_of_chunks(choices), stream, choices, chunks, chunk_counts);
  launch(segment_starts_kernel, {.blocks = blocks_for(counters, kThreads), .threads = kThreads},
         stream, chunk_counts, chunks, choices.experts, limit, starts,
         Flat<std::int32_t>{late, counters});
  launch(add_late_kernel,
         {.blocks = 1, .threads = kThreads, .shared_bytes = kThreads / kWarp * sizeof(double)},
         stream, Flat<const std::int32_t>{late, counters}, dropped);
  launch(keep_kernel, grid_of_chunks(choices), stream, choices, chunks, limit.capacity,
         starts, kept);
}

void sort_choices(cudaStream_t stream, const Choices& choices, const SortedRows& rows,
                  std::int32_t* chunk_counts, std::int32_t* starts) {
  const std::int64_t chunks = chunks_per_segment(choices);
  launch(count_kernel, grid_of_chunks(choices), stream, choices, chunks, chunk_counts);
  const int threads = std::min((choices.experts + kWarp - 1) / kWarp, 32) * kWarp;
  launch(begin_kernel,
         {.blocks = 1,
          .threads = static_cast<unsigned>(threads),
          .shared_bytes = static_cast<std::size_t>(choices.experts) * sizeof(int)},
         stream, chunk_counts, chunks, rows, starts);
  launch(place_kernel, grid_of_chunks(choices), stream, choices, rows, starts);
}

}  // namespace sortie::trainer::ops::cuda
