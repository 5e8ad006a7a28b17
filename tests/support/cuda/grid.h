// How an emulated GPU runs a kernel.
#pragma once

#include <cuda_runtime.h>

namespace emulated_cuda {

/// All blocks of a kernel, one after another; threads in an order that the seed decides.
void run_grid(dim3 blocks, dim3 threads, std::size_t shared_bytes,
              const std::function<void()>& kernel, std::uint64_t seed);

}  // namespace emulated_cuda
