// The memory of a GPU.
#pragma once

#include "trainer/tensor/device_memory.h"

namespace sortie::trainer::ops::cuda {

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(Device device) : device_(device) {}
  void* take(std::size_t size, std::size_t used) override;
  void give_back(void* block) override;
  void read(const void* from, std::span<std::byte> to) override;
  void write(std::span<const std::byte> from, void* to) override;

 private:
  const Device device_;
};

}  // namespace sortie::trainer::ops::cuda
