// Errors of CUDA's calls.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>

namespace sortie::trainer::ops::cuda {

/// What the GPU or its driver refused, or what a kernel before it did wrong. Ends the rank with its
/// message, as every exception that crosses the trainer does.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws CudaError, which says what failed and the driver's name and text of the error.
void check(cudaError_t error, const char* what);

}  // namespace sortie::trainer::ops::cuda
