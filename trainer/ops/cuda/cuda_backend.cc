#include "trainer/ops/cuda/cuda_backend.h"

#include "trainer/ops/cuda/error.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// Code for compute capability 9.0 runs there alone; without SORTIE_CUDA_SM90 it is not compiled.
bool has_warpgroups([[maybe_unused]] Device device) {
#ifdef SORTIE_CUDA_SM90
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "a look at a GPU");
  return properties.major == 9 && properties.minor == 0;
#else
  return false;
#endif
}

}  // namespace

CudaBackend::CudaBackend(Device device)
    : device_(device), warpgroups_(has_warpgroups(device)), products_(device) {}

}  // namespace sortie::trainer::ops::cuda
