// Rotary position embedding: what the .cu file defines and host code starts. T: float or bf16.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// x [B, T, H, D] with strides in elements, of which every head's first 2 half dimensions turn.
template <class T>
struct RopeHeads {
  T* data = nullptr;
  std::int64_t samples = 0, tokens = 0, heads = 0, half = 0;
  std::int64_t sample = 0, token = 0, head = 0;
  /// Heads begin at multiples of 16 bytes, and so do their second halves.
  bool in_pieces = false;
  bool interleaved = false;
};

/// cos and sin [positions, half] of ops::RopeTable; `at` [B, T] are rows of them, null: 0, 1, 2 ...
struct RopeAngles {
  const float *cos = nullptr, *sin = nullptr;
  const std::int32_t* at = nullptr;
  std::int64_t positions = 0;
};

/// Turns by `sign` times the angles. A token whose position is not in the table becomes NaN.
template <class T>
void rope_heads(cudaStream_t stream, RopeHeads<T> x, const RopeAngles& angles, float sign);

}  // namespace sortie::trainer::ops::cuda
