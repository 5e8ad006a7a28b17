// Copies of strided views.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"

namespace sortie::trainer::ops::cuda {

/// Sizes of a copy from the slowest to the fastest dimension, and the steps of both sides. All are
/// in bytes except sizes[0] to sizes[2]. The last dimension is dense.
struct CopyPlan {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t sizes[4] = {1, 1, 1, 1};
  std::int64_t from_steps[3] = {}, to_steps[3] = {};
  /// On the device. If not nullptr, `to` begins *place * place_step bytes later.
  const std::int32_t* place = nullptr;
  std::int64_t place_step = 0;
};

/// Adds the copy to the stream: a copy of the driver if it is dense, else a kernel with units as
/// large as addresses and steps allow.
void copy_strided(cudaStream_t stream, CopyPlan plan);

}  // namespace sortie::trainer::ops::cuda
