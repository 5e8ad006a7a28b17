// The choice of a block's largest coefficients and its message (ops/demo.h), for demo.cu.
#pragma once

#include "trainer/ops/cuda/demo_block.h"

namespace sortie::trainer::ops::cuda {

/// The magnitudes (demo_magnitude()) of the thread's coefficients; 0 outside of the block.
using DemoMagnitudes = unsigned[kDemoRows][kDemoColumns];

/// Finds the least magnitude to choose: at least `wanted` coefficients have it or a larger one, and
/// at most `wanted` have a larger one. Two bits are found per round, by counting three candidates
/// at once.
__device__ __forceinline__ unsigned find_least(const DemoMagnitudes& magnitudes, unsigned wanted,
                                               DemoChoice& choice) {
  constexpr int kBits = 10;  // of a count of one warp
  static_assert(kWarp * kDemoRows * kDemoColumns < 1 << kBits);
  unsigned least = 0;
  int round = 0;
  for (int shift = 30; shift >= 0; shift -= 2) {
    unsigned found = 0;
    for_each_of_block([&](int i, int j, int, int) {
#pragma unroll
      for (unsigned digit = 1; digit <= 3; ++digit)
        if (magnitudes[i][j] >= least + (digit << shift)) found += 1u << kBits * (digit - 1);
    });
    found = __reduce_add_sync(kAllLanes, found);
    if (lane_of_thread() == 0) choice.found[round][warp_of_thread()] = found;
    __syncthreads();
    unsigned counts[3] = {};
    for (int warp = 0; warp < kDemoWarps; ++warp)
#pragma unroll
      for (int digit = 0; digit < 3; ++digit)
        counts[digit] += choice.found[round][warp] >> kBits * digit & ((1u << kBits) - 1);
    bool exact = false;
#pragma unroll
    for (int digit = 0; digit < 3; ++digit) {
      if (counts[digit] < wanted) continue;
      least += 1u << shift;
      exact = counts[digit] == wanted;
    }
    if (exact) break;  // the same for all threads
    round = 1 - round;
  }
  return least;
}

/// How many coefficients of a row, or of rows, are larger than the least one, and equal to it.
struct DemoCount {
  unsigned both;  // the first number, and the second times 2^16
  __device__ __forceinline__ unsigned larger() const { return both & 0xffffu; }
  __device__ __forceinline__ unsigned equal() const { return both >> 16; }
};

/// The numbers of the rows before a row and of all rows, from the numbers of each row. Has to be
/// called by all lanes of a warp; lane l has those of the rows 2 l and 2 l + 1.
class DemoRowCounts {
 public:
  __device__ __forceinline__ explicit DemoRowCounts(const unsigned* of_rows)
      : first_(of_rows[2 * lane_of_thread()]) {
    const unsigned mine = first_ + of_rows[2 * lane_of_thread() + 1];
    unsigned sum = mine;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const unsigned other = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(distance));
      if (lane_of_thread() >= distance) sum += other;
    }
    before_ = sum - mine;
    all_ = __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  __device__ __forceinline__ DemoCount before(int row) const {
    const unsigned pair = __shfl_sync(kAllLanes, before_, row / 2);
    const unsigned first = __shfl_sync(kAllLanes, first_, row / 2);
    return {row % 2 == 0 ? pair : pair + first};
  }
  __device__ __forceinline__ DemoCount all() const {
    return {all_};
  }

 private:
  unsigned first_, before_, all_;
};
static_assert(kDemoLine == 2 * kWarp);

/// Chooses the `wanted` coefficients of the largest magnitude in memory.values; of equal ones the
/// first in row-major order. Replaces the chosen ones by what the message encodes of them, sets
/// memory.masks, and fills the lists of memory.choice. Returns the scale. All threads call it after
/// a __syncthreads(); the results are visible to all on return.
__device__ __forceinline__ DemoScale choose_largest(const DemoPlace& place, int wanted,
                                                    DemoMemory& memory) {
  DemoChoice& choice = memory.choice;
  DemoMagnitudes magnitudes;
  unsigned largest = 0;
  for_each_of_block([&](int i, int j, int row, int column) {
    magnitudes[i][j] =
        place.contains(row, column) ? demo_magnitude(memory.values[row * kDemoLine + column]) : 0u;
    largest = magnitudes[i][j] > largest ? magnitudes[i][j] : largest;
  });
  largest = __reduce_max_sync(kAllLanes, largest);
  if (lane_of_thread() == 0) choice.largest[warp_of_thread()] = largest;
  const unsigned least = find_least(magnitudes, static_cast<unsigned>(wanted), choice);
  for (int warp = 0; warp < kDemoWarps; ++warp)
    largest = choice.largest[warp] > largest ? choice.largest[warp] : largest;
  const DemoScale scale = demo_scale(largest);

  const auto votes = [&](int i, unsigned(&larger)[kDemoColumns], unsigned(&equal)[kDemoColumns]) {
#pragma unroll
    for (int j = 0; j < kDemoColumns; ++j) {
      const bool there =
          place.contains(warp_of_thread() + kDemoWarps * i, lane_of_thread() + kWarp * j);
      larger[j] = __ballot_sync(kAllLanes, magnitudes[i][j] > least);
      equal[j] = __ballot_sync(kAllLanes, there && magnitudes[i][j] == least);
    }
  };
  unsigned larger[kDemoColumns], equal[kDemoColumns];
#pragma unroll
  for (int i = 0; i < kDemoRows; ++i) {
    votes(i, larger, equal);
    if (lane_of_thread() == 0)
      choice.of_rows[warp_of_thread() + kDemoWarps * i] =
          static_cast<unsigned>(__popc(larger[0]) + __popc(larger[1])) |
          static_cast<unsigned>(__popc(equal[0]) + __popc(equal[1])) << 16;
  }
  __syncthreads();
  const DemoRowCounts counts(choice.of_rows);
  const unsigned of_equal = static_cast<unsigned>(wanted) - counts.all().larger();
  const unsigned lanes_before = (1u << lane_of_thread()) - 1;
#pragma unroll
  for (int i = 0; i < kDemoRows; ++i) {
    const int row = warp_of_thread() + kDemoWarps * i;
    votes(i, larger, equal);
    const DemoCount before = counts.before(row);
    // Ranks of equal ones in the block, then places of chosen ones in the message.
    unsigned rank = before.equal(), taken[kDemoColumns];
#pragma unroll
    for (int j = 0; j < kDemoColumns; ++j) {
      const bool mine = (equal[j] >> lane_of_thread() & 1u) != 0 &&
                        rank + static_cast<unsigned>(__popc(equal[j] & lanes_before)) < of_equal;
      taken[j] = larger[j] | __ballot_sync(kAllLanes, mine);
      rank += static_cast<unsigned>(__popc(equal[j]));
    }
    unsigned at = before.larger() + (before.equal() < of_equal ? before.equal() : of_equal);
#pragma unroll
    for (int j = 0; j < kDemoColumns; ++j) {
      const int column = lane_of_thread() + kWarp * j;
      if ((taken[j] >> lane_of_thread() & 1u) != 0) {
        float& value = memory.values[row * kDemoLine + column];
        const std::int8_t code = scale.code(value);
        const unsigned place_of_it = at + static_cast<unsigned>(__popc(taken[j] & lanes_before));
        choice.indices[place_of_it] = static_cast<std::uint16_t>(row * place.columns + column);
        choice.codes[place_of_it] = code;
        value = scale.value * static_cast<float>(code);
      }
      at += static_cast<unsigned>(__popc(taken[j]));
      if (lane_of_thread() == j) memory.masks[row][j] = taken[j];
    }
  }
  __syncthreads();
  return scale;
}

/// Byte `at` of the message of a block with `chosen` coefficients.
__device__ __forceinline__ std::uint8_t message_byte(int at, int slots, const DemoScale& scale,
                                                     int chosen, const DemoChoice& choice) {
  if (at < 2) return static_cast<std::uint8_t>(scale.bits >> (16 + 8 * at));
  const int of_indices = at - 2, of_codes = of_indices - slots / 2 * 3;
  if (of_codes >= 0)
    return of_codes < chosen ? static_cast<std::uint8_t>(choice.codes[of_codes]) : 0;
  const int pair = of_indices / 3 * 2, byte = of_indices % 3;
  const unsigned first = pair < chosen ? choice.indices[pair] : 0u;
  const unsigned second = pair + 1 < chosen ? choice.indices[pair + 1] : 0u;
  return static_cast<std::uint8_t>((first | second << 12) >> 8 * byte);
}

}  // namespace sortie::trainer::ops::cuda
