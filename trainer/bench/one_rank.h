// What one rank can do by itself.
#pragma once

#include "trainer/tensor/context.h"

namespace sortie::trainer {

struct MatmulBench {
  std::int64_t rows = 1024, out = 3072, in = 768;  // y [rows, out] = x [rows, in] . W^T
  DType dtype = DType::bf16;
  int iterations = 20;
};
/// Seconds of one product, the fastest; as the trainer computes them.
struct MatmulSeconds {
  double forward = 0, data_gradient = 0, weight_gradient = 0;
};
MatmulSeconds bench_matmul(ExecutionContext& context, const MatmulBench& bench);

/// Seconds that a copy of `bytes` in memory takes, the fastest: by one thread, and by all compute
/// threads of the context.
struct CopySeconds {
  double one_thread = 0, all_threads = 0;
};
CopySeconds bench_copy(ExecutionContext& context, std::int64_t bytes, int iterations);

}  // namespace sortie::trainer
