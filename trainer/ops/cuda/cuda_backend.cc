#include "trainer/ops/cuda/cuda_backend.h"

#include "trainer/ops/cuda/error.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// Code for compute capability 9.0 runs only there; it is compiled only with SORTIE_CUDA_SM90.
bool has_warpgroups([[maybe_unused]] const cudaDeviceProp& properties) {
#ifdef SORTIE_CUDA_SM90
  return properties.major == 9 && properties.minor == 0;
#else
  return false;
#endif
}

/// Shared memory per block if two blocks are to share a multiprocessor. A multiprocessor has what
/// one block can use plus what the driver reserves per block.
std::size_t half_of_shared_memory(const cudaDeviceProp& properties) {
  constexpr std::size_t kDrivers = 1024;
  return (properties.sharedMemPerBlockOptin + kDrivers) / 2 - kDrivers;
}

cudaDeviceProp properties_of(Device device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "a look at a GPU");
  return properties;
}

}  // namespace

CudaBackend::CudaBackend(Device device) : CudaBackend(device, properties_of(device)) {}
CudaBackend::CudaBackend(Device device, const cudaDeviceProp& properties)
    : device_(device),
      warpgroups_(has_warpgroups(properties)),
      half_shared_bytes_(half_of_shared_memory(properties)),
      products_(device) {}

}  // namespace sortie::trainer::ops::cuda
