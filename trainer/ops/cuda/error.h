// Errors of CUDA's calls.
#pragma once

#include <cuda_runtime.h>

#include "trainer/tensor/device_module.h"

namespace sortie::trainer::ops::cuda {

/// What the GPU or its driver refused, or what a kernel before it did wrong.
struct CudaError : DeviceError {
  using DeviceError::DeviceError;
};

/// Throws CudaError, which says what failed and the driver's name and text of the error.
void check(cudaError_t error, const char* what);

}  // namespace sortie::trainer::ops::cuda
