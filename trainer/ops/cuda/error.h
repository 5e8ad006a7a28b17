// Errors of CUDA's calls.
#pragma once

#include "trainer/ops/cuda/check.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer::ops::cuda {

/// What the GPU or its driver refused, or what a kernel before it did wrong.
struct CudaError : DeviceError {
  using DeviceError::DeviceError;
};

}  // namespace sortie::trainer::ops::cuda
