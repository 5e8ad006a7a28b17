// Memory of an emulated GPU: only kernels and copies can access it, and only within blocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/cuda/in_child.h"
#include "tests/support/cuda/memory.h"
#include "tests/support/cuda/test_gpu.h"

namespace emulated_cuda {
namespace {

__global__ void write_at(float* x, std::size_t at) {
  x[at] = 1;
}
__global__ void read_at(const float* x, std::size_t at, float* y) {
  *y = x[at];
}

}  // namespace

TEST_CASE("the host can not touch device memory, before, between and after kernels") {
  Gpu gpu;
  float* x = gpu.make(1024, 3);
  const auto read = [&] { (void)*const_cast<volatile float*>(x + 2); };
  constexpr const char* kSays =
      "the host touches device memory of emulated GPU 0: byte 8 of a block of 4096 bytes";
  check_ends(kSays, read);
  gpu.run(0, write_at, {.blocks = 1, .threads = 1}, x, 5);
  check_ends(kSays, read);
  CHECK(gpu.values(x, 6)[5] == 1);
  check_ends(kSays, read);
}

TEST_CASE("kernels touch nothing behind a block, and nothing that was freed") {
  Gpu gpu;
  float* x = gpu.make(1024, 3);
  const auto touch = [&](float* at, std::size_t index) {
    gpu.run(0, write_at, {.blocks = 1, .threads = 1}, at, index);
    (void)cudaDeviceSynchronize();
  };
  void* block = nullptr;
  REQUIRE(cudaMalloc(&block, 4096) == cudaSuccess);
  REQUIRE(cudaFree(block) == cudaSuccess);
  check_ends("cudaFree of what is not, or no longer, a block", [&] { (void)cudaFree(block); });
  auto* freed = static_cast<float*>(block);
  check_lives([&] { touch(x, 1023); });
  if (guards_blocks()) {
    check_ends("a kernel or a copy touches device memory of emulated GPU 0: 1 bytes behind a block",
               [&] { touch(x, 1024); });
    check_ends("no block, or one that was freed", [&] { touch(freed, 0); });
  } else {
    float* y = gpu.make(1, 0);
    for (const float* at : {x + 1024, freed}) {
      gpu.run(0, read_at, {.blocks = 1, .threads = 1}, at, 0, y);
      CHECK(std::isnan(gpu.values(y, 1)[0]));
    }
  }
}

TEST_CASE("device memory is NaN before it is written, also where it was used before") {
  Gpu gpu;
  for (int round = 0; round < 3; ++round) {
    void* block = nullptr;
    REQUIRE(cudaMalloc(&block, 64) == cudaSuccess);
    auto* x = static_cast<float*>(block);
    CHECK(std::ranges::all_of(gpu.values(x, 16), [](float value) { return std::isnan(value); }));
    gpu.run(0, write_at, {.blocks = 1, .threads = 1}, x, 3);
    CHECK(gpu.values(x, 16)[3] == 1);
    REQUIRE(cudaFree(block) == cudaSuccess);
  }
}

TEST_CASE("blocks are apart, aligned, and counted") {
  Gpu gpu;
  std::size_t before = 0, total = 0, after = 0;
  REQUIRE(cudaMemGetInfo(&before, &total) == cudaSuccess);
  std::vector<float*> blocks;
  for (std::size_t size = 1; size < 40; ++size)
    blocks.push_back(gpu.make(size, static_cast<float>(size)));
  for (std::size_t size = 1; size < 40; ++size) {
    CHECK(gpu.values(blocks[size - 1], size) == std::vector<float>(size, static_cast<float>(size)));
    CHECK(reinterpret_cast<std::uintptr_t>(blocks[size - 1]) % 256 == 0);
  }
  REQUIRE(cudaMemGetInfo(&after, &total) == cudaSuccess);
  CHECK(before - after == 39 * 512);
  void* block = &total;
  CHECK(cudaMalloc(&block, total) == cudaErrorMemoryAllocation);
  CHECK(block == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("copies and fills are refused where their bytes are not in one block") {
  Gpu gpu;
  float* x = gpu.make(128, 3);
  std::vector<float> host(256);
  const cudaStream_t stream = gpu.streams[0];
  CHECK(cudaMemcpyAsync(x, host.data(), 512, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  CHECK(cudaMemcpyAsync(x, host.data(), 1024, cudaMemcpyHostToDevice, stream) ==
        cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(host.data(), x + 1, 512, cudaMemcpyDeviceToHost, stream) ==
        cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(x, host.data(), 512, cudaMemcpyDeviceToDevice, stream) ==
        cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(host.data(), 0, 512, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(x, 0, 512, stream) == cudaSuccess);
  CHECK(cudaMemcpy2DAsync(x, 64, x + 8, 64, 32, 8, cudaMemcpyDeviceToDevice, stream) ==
        cudaSuccess);
  CHECK(cudaMemcpy2DAsync(x, 64, x + 9, 64, 32, 8, cudaMemcpyDeviceToDevice, stream) ==
        cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}

TEST_CASE("GPUs have memory of their own") {
  Gpu first(0), second(1);
  float* x = second.make(16, 2);
  check_ends("touches device memory of emulated GPU 1", [&] {
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    float* y = first.make(16, 1);
    first.run(0, read_at, {.blocks = 1, .threads = 1}, x, 0, y);
    (void)cudaDeviceSynchronize();
  });
}

}  // namespace emulated_cuda
