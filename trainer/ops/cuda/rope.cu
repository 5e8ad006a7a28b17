#include "trainer/ops/cuda/rope.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kThreads = 128;

/// kPairs divides the table's row length, but the addresses may be aligned to only 4 bytes.
template <int kPairs>
__device__ __forceinline__ Floats<kPairs> load_angles(const float* from) {
  constexpr int kEach = kPairs < 4 ? kPairs : 4;
  Floats<kPairs> angles;
  if (reinterpret_cast<std::uintptr_t>(from) % (kEach * sizeof(float)) == 0)
    return load<kPairs>(from);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) angles.values[i] = from[i];
  return angles;
}

template <class T>
__device__ __forceinline__ void turn(T& low, T& high, float cos, float sin) {
  const float a = to_float(low), b = to_float(high);
  low = from_float<T>(a * cos - b * sin);
  high = from_float<T>(b * cos + a * sin);
}

/// A thread rotates kPairs neighbouring pairs of a head with accesses of 16 bytes, or one pair
/// element by element. `groups`: of pairs, per head.
template <class T, int kPairs, bool kInterleaved>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(RopeHeads<T> x, RopeAngles angles, float sign, unsigned groups) {
  const unsigned of_token = static_cast<unsigned>(x.heads) * groups;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= x.samples * x.tokens * of_token) return;
  const std::int64_t row = thread / of_token;
  const auto within = static_cast<unsigned>(thread - row * of_token);
  const std::int64_t sample = row / x.tokens, t = row - sample * x.tokens;
  const std::int64_t position = angles.at != nullptr ? angles.at[row] : t;
  const bool known = position >= 0 && position < angles.positions;
  const unsigned of_heads = within / groups;
  const int pair = static_cast<int>((within - of_heads * groups) * kPairs);
  T* head = x.data + sample * x.sample + t * x.token + of_heads * x.head;
  T* low = head + (kInterleaved ? 2 * pair : pair);
  const std::int64_t angle = (known ? position : 0) * x.half + pair;
  Floats<kPairs> cos = load_angles<kPairs>(angles.cos + angle),
                 sin = load_angles<kPairs>(angles.sin + angle);
  const float missing = known ? 0.0f : nanf("");
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    cos.values[j] += missing;
    sin.values[j] *= sign;
  }
  if constexpr (kPairs == 1) {
    turn(*low, kInterleaved ? low[1] : low[x.half], cos.values[0], sin.values[0]);
  } else if constexpr (kInterleaved) {
    using Run = Pack<T, 2 * kPairs>;
    Run run = *reinterpret_cast<const Run*>(low);
#pragma unroll
    for (int j = 0; j < kPairs; ++j)
      turn(run.values[2 * j], run.values[2 * j + 1], cos.values[j], sin.values[j]);
    *reinterpret_cast<Run*>(low) = run;
  } else {
    using Run = Pack<T, kPairs>;
    Run lows = *reinterpret_cast<const Run*>(low);
    Run highs = *reinterpret_cast<const Run*>(low + x.half);
#pragma unroll
    for (int j = 0; j < kPairs; ++j)
      turn(lows.values[j], highs.values[j], cos.values[j], sin.values[j]);
    *reinterpret_cast<Run*>(low) = lows;
    *reinterpret_cast<Run*>(low + x.half) = highs;
  }
}

}  // namespace

template <class T>
void rope_heads(cudaStream_t stream, RopeHeads<T> x, const RopeAngles& angles, float sign) {
  constexpr int kPack = kPackOf<T>;
  const auto run = [&](auto* kernel, int pairs) {
    const auto groups = static_cast<unsigned>(x.half / pairs);
    const std::int64_t threads = x.samples * x.tokens * x.heads * groups;
    launch(kernel, {.blocks = blocks_for(threads, kThreads), .threads = kThreads}, stream, x,
           angles, sign, groups);
  };
  if (x.interleaved && x.in_pieces)
    run(rope_kernel<T, kPack / 2, true>, kPack / 2);
  else if (x.interleaved)
    run(rope_kernel<T, 1, true>, 1);
  else if (x.in_pieces)
    run(rope_kernel<T, kPack, false>, kPack);
  else
    run(rope_kernel<T, 1, false>, 1);
}
template void rope_heads(cudaStream_t, RopeHeads<float>, const RopeAngles&, float);
template void rope_heads(cudaStream_t, RopeHeads<bf16>, const RopeAngles&, float);

}  // namespace sortie::trainer::ops::cuda
