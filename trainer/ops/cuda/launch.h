// launch(): the only way to start kernels. Included by .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "trainer/ops/cuda/error.h"

namespace sortie::trainer::ops::cuda {

/// Numbers of blocks and threads of a kernel, and its shared memory in bytes per block.
struct Grid {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;
};

/// Allows blocks of the kernel this much shared memory on the current GPU from now on. The limit
/// never decreases, because other threads may be about to start the same kernel.
void allow_shared_bytes(const void* kernel, std::size_t bytes);

/// Adds the kernel to the stream; its arguments are copied.
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream, Args... args) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
#ifdef __CUDACC__
  // More than this must be requested.
  constexpr std::size_t kUsualSharedBytes = 48 << 10;
  if (grid.shared_bytes > kUsualSharedBytes)
    allow_shared_bytes(reinterpret_cast<const void*>(kernel), grid.shared_bytes);
  [&](Parameters... parameters) {
    void* addresses[] = {static_cast<void*>(&parameters)..., nullptr};
    check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid.blocks, grid.threads,
                           addresses, grid.shared_bytes, stream),
          "a kernel");
  }(static_cast<Parameters>(args)...);
#else
  check(emulated_cuda::launch(grid.blocks, grid.threads, grid.shared_bytes, stream,
                              [kernel, args...] { kernel(static_cast<Parameters>(args)...); }),
        "a kernel");
#endif
}

/// Blocks of `size` that cover `count` items.
inline unsigned blocks_for(std::int64_t count, std::int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

}  // namespace sortie::trainer::ops::cuda
