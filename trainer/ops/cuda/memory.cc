#include "trainer/ops/cuda/memory.h"

#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/streams.h"

namespace sortie::trainer::ops::cuda {

void* CudaMemory::take(std::size_t size, std::size_t) {
  use_device(device_);
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, size);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // it is not one of later calls
    return nullptr;
  }
  check(error, "memory");
  return block;
}

void CudaMemory::give_back(void* block) {
  (void)cudaSetDevice(device_.index);
  (void)cudaFree(block);
}

void CudaMemory::read(const void* from, std::span<std::byte> to) {
  use_device(device_);
  check(cudaDeviceSynchronize(), "work of the GPU");
  check(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost), "a copy to the host");
}

void CudaMemory::write(std::span<const std::byte> from, void* to) {
  use_device(device_);
  check(cudaDeviceSynchronize(), "work of the GPU");
  check(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), "a copy from the host");
}

}  // namespace sortie::trainer::ops::cuda
