// Errors of CUDA's calls.
#pragma once

#include <cuda_runtime.h>

namespace sortie::trainer::ops::cuda {

/// Throws DeviceError (tensor/device_module.h), which says what failed and the driver's name and
/// text of the error: what the GPU or its driver refused, or what a kernel before it did wrong.
void check(cudaError_t error, const char* what);

}  // namespace sortie::trainer::ops::cuda
