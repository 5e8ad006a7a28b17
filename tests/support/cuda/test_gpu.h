// An emulated GPU with two streams, for tests.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace emulated_cuda {

struct Gpu {
  explicit Gpu(int index = 0) {
    REQUIRE(cudaSetDevice(index) == cudaSuccess);
    for (cudaStream_t& stream : streams)
      REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  }
  ~Gpu() {
    for (const cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
    for (void* block : blocks) (void)cudaFree(block);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// Allocates device memory with these values.
  float* make(const std::vector<float>& values) {
    auto* block = static_cast<float*>(take(values.size() * sizeof(float)));
    REQUIRE(cudaMemcpy(block, values.data(), values.size() * sizeof(float),
                       cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    return block;
  }
  float* make(std::size_t size, float value) { return make(std::vector<float>(size, value)); }
  void* take(std::size_t bytes) {
    void* block = nullptr;
    REQUIRE(cudaMalloc(&block, bytes) == cudaSuccess);
    blocks.push_back(block);
    return block;
  }
  /// All values of the block, after the streams have finished.
  std::vector<float> values(const float* block, std::size_t size) {
    std::vector<float> host(size);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(host.data(), block, size * sizeof(float), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return host;
  }
  template <class... Parameters, class... Args>
  void run(std::size_t stream, void (*kernel)(Parameters...),
           const sortie::trainer::ops::cuda::Grid& grid, Args... args) {
    sortie::trainer::ops::cuda::launch(kernel, grid, streams[stream], args...);
  }

  std::array<cudaStream_t, 2> streams{};
  std::vector<void*> blocks;
};

}  // namespace emulated_cuda
