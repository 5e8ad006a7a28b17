// AdamW with moments in bf16 and stochastic rounding (MomentRounding in ops/optimizer.h).
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/optimizer.h"

namespace sortie::trainer::ops::cuda {

/// The members of MomentRounding.
struct RoundingView {
  std::uint64_t key = 0;
  const std::int64_t* step = nullptr;
  std::int64_t first = 0, begin = 0, columns = 0, stride = 0;
};
/// All have `count` elements; `compute` may be nullptr.
struct AdamWRoundedRange {
  float* w = nullptr;
  const float* grad = nullptr;
  bf16 *m = nullptr, *v = nullptr;
  bf16* compute = nullptr;
  std::int64_t count = 0;
};
void adamw_rounded_range(cudaStream_t stream, const AdamWNumbers& numbers,
                         const RoundingView& rounding, const AdamWRoundedRange& range);

}  // namespace sortie::trainer::ops::cuda
