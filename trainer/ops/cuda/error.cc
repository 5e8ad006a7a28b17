#include "trainer/ops/cuda/error.h"

#include <fmt/core.h>

#include "trainer/tensor/device_module.h"

namespace sortie::trainer::ops::cuda {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw DeviceError(fmt::format("GPU: {} failed: {} ({})", what, cudaGetErrorString(error),
                                cudaGetErrorName(error)));
}

}  // namespace sortie::trainer::ops::cuda
