// The memory of a GPU.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <vector>

#include "trainer/tensor/device_memory.h"

namespace sortie::trainer::ops::cuda {

/// Lives as long as the module, so that blocks can be given back at any time.
class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(Device device);
  void* take(std::size_t size, std::size_t used) override;
  void give_back(void* block) override;
  void read(const void* from, std::span<std::byte> to) override;
  void write(std::span<const std::byte> from, void* to) override;
  Event begin_read(const void* from, std::span<std::byte> to) override;
  Event begin_write(std::span<const std::byte> from, void* to) override;
  void finish_copies() override;
  /// Pinned memory, which is kept for later requests of its size class.
  std::shared_ptr<std::byte[]> host_block(std::size_t size) override;
  void pin(std::span<std::byte> memory) override;
  void unpin(std::span<std::byte> memory) override;

 private:
  std::byte* take_pinned(std::size_t size);
  /// One stream per direction, because GPUs have a copy engine for each.
  cudaStream_t reads_ = nullptr, writes_ = nullptr;
  const Device device_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_pinned_;
};

}  // namespace sortie::trainer::ops::cuda
