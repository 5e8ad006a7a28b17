// The clock of a GPU, for kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifndef __CUDACC__
namespace emulated_cuda {
/// The clock of the GPU whose kernel this thread runs, as events record it.
std::uint64_t time_ns();
}  // namespace emulated_cuda
#endif

namespace sortie::trainer::ops::cuda {

/// Nanoseconds, the same clock for all kernels of a GPU and another one for each GPU. It may
/// advance in steps of a microsecond.
__device__ __forceinline__ std::uint64_t time_ns() {
#if defined(__CUDA_ARCH__)
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
#elif defined(__CUDACC__)
  return 0;  // on the host, which does not call it
#else
  return emulated_cuda::time_ns();
#endif
}

}  // namespace sortie::trainer::ops::cuda
