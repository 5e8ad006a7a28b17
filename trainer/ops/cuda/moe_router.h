// Kernels of routers. Each launcher adds its kernels to the stream and returns at once. The
// formulas are in trainer/ops/moe_router.h.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// RouterSpec as a kernel argument.
struct Routing {
  bool sigmoid = false, normalize = true;
  int experts = 0, top_k = 0, groups = 1, kept_groups = 1;
  float scale = 1.0f;
};

/// logits, scores [rows, E]; experts, weights [rows, k]; bias [E] and replay [rows, k] may be
/// nullptr.
struct RouteForward {
  const float *logits = nullptr, *bias = nullptr;
  const std::int32_t* replay = nullptr;
  float* scores = nullptr;
  std::int32_t* experts = nullptr;
  float* weights = nullptr;
  std::int64_t rows = 0;
};
void route_rows(cudaStream_t stream, const Routing& routing, const RouteForward& tensors);

/// dweights [rows, k] and dscores [rows, E] may be nullptr.
struct RouteBackward {
  const float* scores = nullptr;
  const std::int32_t* experts = nullptr;
  const float *dweights = nullptr, *dscores = nullptr;
  float* dlogits = nullptr;
  std::int64_t rows = 0;
};
void route_rows_backward(cudaStream_t stream, const Routing& routing, const RouteBackward& tensors);

/// experts [rows, k] = the top k of dense scores [rows, E].
void top_experts(cudaStream_t stream, Rows<const float> scores, int top_k, std::int32_t* experts);

}  // namespace sortie::trainer::ops::cuda
