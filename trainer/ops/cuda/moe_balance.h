// Kernels of the losses that keep experts evenly loaded. Each launcher adds its kernels to the
// stream and returns at once. The formulas are in trainer/ops/moe_router.h.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// Row r belongs to sequence r / length; counts [rows / length, E].
/// loss += factor * sum over rows of (sum_e scores_e counts_e) / (sum_e scores_e); parts: scratch
/// memory, ceil(rows / kRowsPerPart).
void add_sequence_balance(cudaStream_t stream, Rows<const float> scores, const float* counts,
                          std::int64_t length, double factor, Flat<double> parts, double* loss);
/// dscores += factor / sum * (counts - along / sum), the two sums as above.
void add_sequence_balance_slope(cudaStream_t stream, Rows<const float> scores, const float* counts,
                                std::int64_t length, float factor, float* dscores);

/// sums += column sums of a dense matrix; parts: scratch memory, ceil(rows / kRowsPerPart) * cols.
void add_column_sums(cudaStream_t stream, Rows<const float> matrix, Flat<double> parts,
                     double* sums);

/// loss += factor * sum of a_e b_e
void add_dot(cudaStream_t stream, Flat<const double> a, const double* b, double factor,
             double* loss);
/// Every row of dscores += float(factor * assigned_e)
void add_load_balance_slope(cudaStream_t stream, const double* assigned, double factor,
                            Rows<float> dscores);
/// bias_e += rate * sign(mean(counts) - counts_e). No-op if *gate is 0.
void move_bias(cudaStream_t stream, const float* gate, Flat<const double> counts, float rate,
               float* bias);

}  // namespace sortie::trainer::ops::cuda
