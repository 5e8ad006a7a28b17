#include "trainer/ops/cuda/launch.h"

#ifdef __CUDACC__  // the emulation does not limit shared memory
#include <map>
#include <mutex>
#include <utility>

namespace sortie::trainer::ops::cuda {

void allow_shared_bytes(const void* kernel, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::size_t> allowed;
  int device = 0;
  check(cudaGetDevice(&device), "the current GPU");
  const std::scoped_lock lock(mutex);
  std::size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of a kernel");
  most = bytes;
}

}  // namespace sortie::trainer::ops::cuda
#endif
