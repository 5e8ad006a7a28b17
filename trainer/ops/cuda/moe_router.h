// Kernels of routers and balance losses. Each launcher goes to the stream and returns at once. The
// formulas are with the ops, in trainer/ops/moe_router.h.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// RouterSpec, as kernels are told.
struct Routing {
  bool sigmoid = false, normalize = true;
  int experts = 0, top_k = 0, groups = 1, kept_groups = 1;
  float scale = 1.0f;
};

/// logits, scores [rows, E]; bias [E] and replay [rows, k] may be null; experts, weights [rows, k].
struct RouteForward {
  const float *logits = nullptr, *bias = nullptr;
  const std::int32_t* replay = nullptr;
  float* scores = nullptr;
  std::int32_t* experts = nullptr;
  float* weights = nullptr;
  std::int64_t rows = 0;
};
void route_rows(cudaStream_t stream, const Routing& routing, const RouteForward& tensors);

/// dweights [rows, k] and dscores [rows, E] may be null.
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

/// Rows are added up in parts of so many, then the parts in their order.
inline constexpr std::int64_t kRowsPerPart = 256;

/// Row r is of sequence r / length; counts [rows / length, E].
/// loss += factor * sum over rows of (sum_e scores_e counts_e) / (sum_e scores_e); parts:
/// scratch, ceil(rows / kRowsPerPart).
void add_sequence_balance(cudaStream_t stream, Rows<const float> scores, const float* counts,
                          std::int64_t length, double factor, Flat<double> parts, double* loss);
/// dscores += factor / sum * (counts - along / sum), the two sums as above.
void add_sequence_balance_slope(cudaStream_t stream, Rows<const float> scores, const float* counts,
                                std::int64_t length, float factor, float* dscores);

/// sums += column sums of a dense matrix; parts: scratch, ceil(rows / kRowsPerPart) * cols.
void add_column_sums(cudaStream_t stream, Rows<const float> matrix, Flat<double> parts,
                     double* sums);

/// loss += factor * sum of a_e b_e
void add_dot(cudaStream_t stream, Flat<const double> a, const double* b, double factor,
             double* loss);
/// Every row of dscores += float(factor * assigned_e)
void add_load_balance_slope(cudaStream_t stream, const double* assigned, double factor,
                            Rows<float> dscores);
/// bias_e += rate * sign(mean(counts) - counts_e)
void move_bias(cudaStream_t stream, Flat<const double> counts, float rate, float* bias);

}  // namespace sortie::trainer::ops::cuda
