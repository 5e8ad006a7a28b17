#include "trainer/ops/cuda/error.h"

#include <fmt/core.h>

#include "trainer/tensor/device_module.h"

namespace sortie::trainer::ops::cuda {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::string text = fmt::format("GPU: {} failed: {} ({})", what, cudaGetErrorString(error),
                                 cudaGetErrorName(error));
  std::size_t free = 0, total = 0;
  if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == cudaSuccess)
    text += fmt::format(": {} of {} MiB are free", free >> 20, total >> 20);
  throw DeviceError(text);
}

}  // namespace sortie::trainer::ops::cuda
