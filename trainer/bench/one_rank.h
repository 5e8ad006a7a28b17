// Measures one rank by itself: matrix products and copies.
#pragma once

#include "trainer/tensor/context.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {

struct MatmulBench {
  std::int64_t rows = 1024, out = 3072, in = 768;  // y [rows, out] = x [rows, in] . W^T
  DType dtype = DType::bf16;
  int iterations = 20;
  int timed = 1;  // ProductOptions::timed
};
/// Seconds of the fastest product, computed as in training.
struct MatmulSeconds {
  double forward = 0, data_gradient = 0, weight_gradient = 0;
};
MatmulSeconds bench_matmul(ExecutionContext& context, const MatmulBench& bench);

/// Peak floating-point operations per second of products of f32 or bf16 with f32 sums, at the
/// highest clock that the driver reports. 0 for GPUs whose figures are not known here.
double peak_flop_s(const GpuFacts& gpu, DType dtype);

/// Seconds of the fastest copy of `bytes` in memory: by one thread, and by all compute threads of
/// the context.
struct CopySeconds {
  double one_thread = 0, all_threads = 0;
};
CopySeconds bench_copy(ExecutionContext& context, std::int64_t bytes, int iterations);

}  // namespace sortie::trainer
