// Runs kernels of an emulated GPU.
#pragma once

#include <cuda_runtime.h>

#include "tests/support/cuda/fault_line.h"

namespace emulated_cuda {

/// Runs all blocks of a kernel one after another. `seed` determines the order of the blocks and of
/// the threads in them. Errors that a real GPU would not survive end the process with a message.
void run_grid(dim3 blocks, dim3 threads, std::size_t shared_bytes,
              const std::function<void()>& kernel, std::uint64_t seed);

/// Describes the address of a forbidden access by this thread's kernel. Returns false if the
/// address does not belong to the kernel.
bool fault_in_grid(const void* address, FaultLine& line);

}  // namespace emulated_cuda
