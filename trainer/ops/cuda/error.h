// Errors of CUDA's calls.
#pragma once

#include <cuda_runtime.h>

namespace sortie::trainer::ops::cuda {

/// Throws DeviceError (tensor/device_module.h) unless `error` is success. The message names what
/// failed, and the driver's name and text of the error. The cause may also be an earlier kernel.
void check(cudaError_t error, const char* what);

}  // namespace sortie::trainer::ops::cuda
