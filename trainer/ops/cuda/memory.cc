#include "trainer/ops/cuda/memory.h"

#include <new>

#include "common/base/size_class.h"
#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/streams.h"

namespace sortie::trainer::ops::cuda {

CudaMemory::CudaMemory(Device device) : device_(device) {
  use_device(device);
  for (cudaStream_t* stream : {&reads_, &writes_})
    check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "a stream");
}

void* CudaMemory::take(std::size_t size, std::size_t) {
  use_device(device_);
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, size);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // so that later calls do not report it
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
  // cudaMemcpy would return once memory that is not pinned has been copied to a staging buffer, and
  // our streams do not wait for the default stream, which transfers it.
  check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, writes_),
        "a copy from the host");
  check(cudaStreamSynchronize(writes_), "a copy from the host");
}

Event CudaMemory::begin_read(const void* from, std::span<std::byte> to) {
  use_device(device_);
  check(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, reads_),
        "a copy to the host");
  return record_event(device_, reads_);
}

Event CudaMemory::begin_write(std::span<const std::byte> from, void* to) {
  use_device(device_);
  check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, writes_),
        "a copy from the host");
  return record_event(device_, writes_);
}

void CudaMemory::finish_copies() {
  use_device(device_);
  for (cudaStream_t stream : {reads_, writes_})
    check(cudaStreamSynchronize(stream), "copies to and from the host");
}

std::byte* CudaMemory::take_pinned(std::size_t size) {
  std::lock_guard lock(mutex_);
  auto& blocks = free_pinned_[size];
  if (!blocks.empty()) {
    std::byte* block = blocks.back();
    blocks.pop_back();
    return block;
  }
  void* block = nullptr;
  use_device(device_);
  const cudaError_t error = cudaMallocHost(&block, size);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw std::bad_alloc();
  }
  check(error, "pinned memory of the host");
  return static_cast<std::byte*>(block);
}

std::shared_ptr<std::byte[]> CudaMemory::host_block(std::size_t size) {
  const std::size_t whole = size_class(size);
  return {take_pinned(whole), [this, whole](std::byte* block) {
            std::lock_guard lock(mutex_);
            free_pinned_[whole].push_back(block);
          }};
}

void CudaMemory::pin(std::span<std::byte> memory) {
  if (memory.empty()) return;
  use_device(device_);
  // Fails if the limits of this process or of the driver do not allow it.
  if (cudaHostRegister(memory.data(), memory.size(), 0) != cudaSuccess) (void)cudaGetLastError();
}

void CudaMemory::unpin(std::span<std::byte> memory) {
  if (memory.empty()) return;
  (void)cudaSetDevice(device_.index);
  if (cudaHostUnregister(memory.data()) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace sortie::trainer::ops::cuda
