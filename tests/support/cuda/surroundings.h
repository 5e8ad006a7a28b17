// What an emulated GPU depends on besides this process: its driver, and other processes that use
// it. Variables of the environment, which are read at each call, emulate what goes wrong.
#pragma once

#include <cuda_runtime.h>

namespace emulated_cuda {

/// An error that Sortie does not look for by its name, so that CUDA's header here has no name for
/// it.
inline constexpr auto cudaErrorDevicesUnavailable = static_cast<cudaError_t>(46);

inline constexpr int kRuntimeVersion = 13000;  // 13.0

/// SORTIE_EMULATED_DRIVER: the version that the driver supports, 12020 = 12.2; 0 = no driver.
int driver_version();

/// Why this process can not start to use GPU `index`: SORTIE_EMULATED_GPUS_TAKEN="1,3" are those
/// that another process has for itself (exclusive-process mode), and a GPU without free memory has
/// none for the start. cudaSuccess if it can.
cudaError_t refused(int index);

/// SORTIE_EMULATED_GPU_USED: bytes of each GPU's memory that other processes use.
std::size_t used_by_others();

}  // namespace emulated_cuda
