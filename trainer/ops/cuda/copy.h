// Copies of strided views.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// Sizes of a copy from the slowest to the fastest dimension and the steps of both sides, all in
/// bytes but for sizes[0] to sizes[2]; the last dimension is dense.
struct CopyPlan {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t sizes[4] = {1, 1, 1, 1};
  std::int64_t from_steps[3] = {}, to_steps[3] = {};
  /// On the device; not null: `to` begins so many times `place_step` bytes further on.
  const std::int32_t* place = nullptr;
  std::int64_t place_step = 0;
};

/// Adds the copy to the stream: by the driver where it is dense, else by a kernel, in units as
/// large as addresses and steps allow.
void copy_strided(cudaStream_t stream, CopyPlan plan);

}  // namespace sortie::trainer::ops::cuda
