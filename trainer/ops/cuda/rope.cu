#include "trainer/ops/cuda/rope.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kThreads = 128;

template <class T>
__device__ __forceinline__ void turn(T& low, T& high, float cos, float sin) {
  const float a = to_float(low), b = to_float(high);
  low = from_float<T>(a * cos - b * sin);
  high = from_float<T>(b * cos + a * sin);
}

/// A block per token; a thread turns kPairs neighbouring pairs of a head at a time, with accesses of
/// 16 bytes, or one pair element by element.
template <class T, int kPairs, bool kInterleaved>
__global__ void rope_kernel(RopeHeads<T> x, RopeAngles angles, float sign) {
  const std::int64_t row = blockIdx.x, t = row % x.tokens;
  const std::int64_t position = angles.at != nullptr ? angles.at[row] : t;
  const bool known = position >= 0 && position < angles.positions;
  const float* cos = angles.cos + (known ? position : 0) * x.half;
  const float* sin = angles.sin + (known ? position : 0) * x.half;
  const float missing = known ? 0.0f : nanf("");
  T* token = x.data + row / x.tokens * x.sample + t * x.token;
  const auto groups = static_cast<int>(x.half) / kPairs;
  const auto count = static_cast<int>(x.heads) * groups;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int pair = i % groups * kPairs;
    T* head = token + i / groups * x.head;
    T* low = head + (kInterleaved ? 2 * pair : pair);
    if constexpr (kPairs == 1) {
      turn(*low, kInterleaved ? low[1] : low[x.half], cos[pair] + missing, sin[pair] * sign);
    } else if constexpr (kInterleaved) {
      using Run = Pack<T, 2 * kPairs>;
      Run run = *reinterpret_cast<const Run*>(low);
#pragma unroll
      for (int j = 0; j < kPairs; ++j)
        turn(run.values[2 * j], run.values[2 * j + 1], cos[pair + j] + missing,
             sin[pair + j] * sign);
      *reinterpret_cast<Run*>(low) = run;
    } else {
      using Run = Pack<T, kPairs>;
      Run lows = *reinterpret_cast<const Run*>(low);
      Run highs = *reinterpret_cast<const Run*>(low + x.half);
#pragma unroll
      for (int j = 0; j < kPairs; ++j)
        turn(lows.values[j], highs.values[j], cos[pair + j] + missing, sin[pair + j] * sign);
      *reinterpret_cast<Run*>(low) = lows;
      *reinterpret_cast<Run*>(low + x.half) = highs;
    }
  }
}

}  // namespace

template <class T>
void rope_heads(cudaStream_t stream, RopeHeads<T> x, const RopeAngles& angles, float sign) {
  const Grid grid{.blocks = static_cast<unsigned>(x.samples * x.tokens), .threads = kThreads};
  constexpr int kPack = kPackOf<T>;
  if (x.interleaved && x.in_pieces)
    launch(rope_kernel<T, kPack / 2, true>, grid, stream, x, angles, sign);
  else if (x.interleaved)
    launch(rope_kernel<T, 1, true>, grid, stream, x, angles, sign);
  else if (x.in_pieces)
    launch(rope_kernel<T, kPack, false>, grid, stream, x, angles, sign);
  else
    launch(rope_kernel<T, 1, false>, grid, stream, x, angles, sign);
}
template void rope_heads(cudaStream_t, RopeHeads<float>, const RopeAngles&, float);
template void rope_heads(cudaStream_t, RopeHeads<bf16>, const RopeAngles&, float);

}  // namespace sortie::trainer::ops::cuda
