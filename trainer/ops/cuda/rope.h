// Rotary position embedding: functions that the .cu file defines and host code calls. T: float or
// bf16.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// x [B, T, H, D] with strides in elements. The first 2 * half dimensions of every head are
/// rotated.
template <class T>
struct RopeHeads {
  T* data = nullptr;
  std::int64_t samples = 0, tokens = 0, heads = 0, half = 0;
  std::int64_t sample = 0, token = 0, head = 0;
  /// Heads and their second halves begin at multiples of 16 bytes.
  bool in_pieces = false;
  bool interleaved = false;
};

/// cos and sin [positions, half] of ops::RopeTable. `at` [B, T] are rows of them; nullptr: 0, 1,
/// 2 ...
struct RopeAngles {
  const float *cos = nullptr, *sin = nullptr;
  const std::int32_t* at = nullptr;
  std::int64_t positions = 0;
};

/// Rotates by `sign` times the angles. A token whose position is not in the table becomes NaN.
template <class T>
void rope_heads(cudaStream_t stream, RopeHeads<T> x, const RopeAngles& angles, float sign);

}  // namespace sortie::trainer::ops::cuda
