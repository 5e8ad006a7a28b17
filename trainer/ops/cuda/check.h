// What kernels' launchers need of error.h. nvcc has no C++23, which the module's other headers are in.
#pragma once

#include <cuda_runtime.h>

namespace sortie::trainer::ops::cuda {

/// Throws CudaError, which says what failed and the driver's name and text of the error.
void check(cudaError_t error, const char* what);

}  // namespace sortie::trainer::ops::cuda
