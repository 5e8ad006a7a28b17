// How an emulated GPU runs a kernel.
#pragma once

#include <cuda_runtime.h>

#include "tests/support/cuda/fault_line.h"

namespace emulated_cuda {

/// All blocks of a kernel, one after another, in an order that the seed decides, as that of the
/// threads in them. What a kernel does that no GPU would survive ends the process with a message.
void run_grid(dim3 blocks, dim3 threads, std::size_t shared_bytes,
              const std::function<void()>& kernel, std::uint64_t seed);

/// Adds what is at an address that this thread's kernel could not touch; false if it is not the
/// kernel's.
bool fault_in_grid(const void* address, FaultLine& line);

}  // namespace emulated_cuda
