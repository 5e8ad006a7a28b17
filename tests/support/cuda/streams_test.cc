// Streams of an emulated GPU: they run late, in any order that events allow.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/support/cuda/test_gpu.h"
#include "trainer/tensor/device_module.h"

namespace emulated_cuda {
namespace {

using sortie::trainer::DeviceError;
using sortie::trainer::ops::cuda::Grid;

__global__ void plus_one(float* x) {
  x[threadIdx.x] += 1;
}
__global__ void twice(const float* x, float* y) {
  y[threadIdx.x] = 2 * x[threadIdx.x];
}
__global__ void nothing() {}

constexpr std::size_t kSize = 32;
const Grid kOne{.blocks = 1, .threads = kSize};

struct TestEvent {
  explicit TestEvent(unsigned flags = cudaEventDisableTiming) {
    REQUIRE(cudaEventCreateWithFlags(&event, flags) == cudaSuccess);
  }
  ~TestEvent() { (void)cudaEventDestroy(event); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  cudaEvent_t event = nullptr;
};

/// Of 50 runs, the number in which the second stream misses what the first has written, or the
/// first overwrites, much later, what the second still reads.
int overtaken(bool waits, bool waited_for) {
  int count = 0;
  Gpu gpu;
  TestEvent written, read;
  for (int trial = 0; trial < 50; ++trial) {
    float *x = gpu.make(kSize, 0), *y = gpu.make(kSize, 0);
    gpu.run(0, plus_one, kOne, x);
    REQUIRE(cudaEventRecord(written.event, gpu.streams[0]) == cudaSuccess);
    if (waits) REQUIRE(cudaStreamWaitEvent(gpu.streams[1], written.event, 0) == cudaSuccess);
    gpu.run(1, twice, kOne, x, y);
    REQUIRE(cudaEventRecord(read.event, gpu.streams[1]) == cudaSuccess);
    if (waited_for) REQUIRE(cudaStreamWaitEvent(gpu.streams[0], read.event, 0) == cudaSuccess);
    for (int i = 0; i < 10; ++i) gpu.run(0, nothing, kOne);
    gpu.run(0, plus_one, kOne, x);
    if (gpu.values(y, kSize) != std::vector<float>(kSize, 2)) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("a missing event between streams is found") {
  CHECK(overtaken(true, true) == 0);
  CHECK(overtaken(false, true) > 2);
  CHECK(overtaken(true, false) > 2);
}

TEST_CASE(
    "a copy from memory that is not pinned has taken it; pinned memory is read and written late") {
  Gpu gpu;
  auto* x = static_cast<float*>(gpu.take(sizeof(float)));
  void* block = nullptr;
  REQUIRE(cudaMallocHost(&block, 2 * sizeof(float)) == cudaSuccess);
  auto* pinned = static_cast<float*>(block);
  int late_reads = 0, late_writes = 0;
  for (int trial = 0; trial < 50; ++trial) {
    float plain = 1;
    REQUIRE(cudaMemcpyAsync(x, &plain, sizeof plain, cudaMemcpyHostToDevice, gpu.streams[0]) ==
            cudaSuccess);
    plain = 2;
    REQUIRE(cudaMemcpyAsync(&plain, x, sizeof plain, cudaMemcpyDeviceToHost, gpu.streams[0]) ==
            cudaSuccess);
    CHECK(plain == 1);
    pinned[0] = 3;
    REQUIRE(cudaMemcpyAsync(x, pinned, sizeof plain, cudaMemcpyHostToDevice, gpu.streams[0]) ==
            cudaSuccess);
    pinned[0] = 4;
    pinned[1] = 5;
    REQUIRE(cudaMemcpyAsync(pinned + 1, x, sizeof plain, cudaMemcpyDeviceToHost, gpu.streams[0]) ==
            cudaSuccess);
    if (pinned[1] == 5) ++late_writes;
    REQUIRE(cudaStreamSynchronize(gpu.streams[0]) == cudaSuccess);
    CHECK(pinned[1] != 5);
    if (pinned[1] == 4) ++late_reads;
  }
  CHECK(late_reads > 10);
  CHECK(late_writes > 10);
  CHECK(cudaFreeHost(block) == cudaSuccess);
  CHECK(cudaFreeHost(block) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}

TEST_CASE("cudaMemcpy waits for no stream") {
  int early = 0;
  for (int trial = 0; trial < 40; ++trial) {
    Gpu gpu;
    float* x = gpu.make(kSize, 1);
    gpu.run(0, plus_one, kOne, x);
    float value = 0;
    REQUIRE(cudaMemcpy(&value, x, sizeof value, cudaMemcpyDeviceToHost) == cudaSuccess);
    if (value == 1) ++early;
  }
  CHECK(early > 0);
}

TEST_CASE("cudaMemcpy to pinned memory returns when the host has the values") {
  for (int trial = 0; trial < 40; ++trial) {
    Gpu gpu;
    float* x = gpu.make(kSize, 3);
    void* block = nullptr;
    REQUIRE(cudaMallocHost(&block, kSize * sizeof(float)) == cudaSuccess);
    auto* host = static_cast<float*>(block);
    std::fill_n(host, kSize, 0.0f);
    REQUIRE(cudaMemcpy(host, x, kSize * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(host[kSize - 1] == 3);
    REQUIRE(cudaFreeHost(block) == cudaSuccess);
  }
}

TEST_CASE("cudaMemcpy of memory that is not pinned returns before the GPU has it") {
  int early = 0;
  for (int trial = 0; trial < 40; ++trial) {
    Gpu gpu;
    float* x = gpu.make(kSize, 1);
    {
      const std::vector<float> host(kSize, 5);
      REQUIRE(cudaMemcpy(x, host.data(), kSize * sizeof(float), cudaMemcpyHostToDevice) ==
              cudaSuccess);
    }
    gpu.run(0, plus_one, kOne, x);
    const float value = gpu.values(x, kSize)[0];
    CHECK((value == 6 || value == 5));
    if (value == 5) ++early;
  }
  CHECK(early > 0);
}

TEST_CASE("who asks often enough sees an event pass, and a stream end") {
  Gpu gpu;
  float* x = gpu.make(kSize, 1);
  TestEvent event;
  CHECK(cudaEventQuery(event.event) == cudaSuccess);  // the event was never recorded
  int later = 0;
  for (int trial = 0; trial < 50; ++trial) {
    for (int i = 0; i < 10; ++i) gpu.run(0, plus_one, kOne, x);
    REQUIRE(cudaEventRecord(event.event, gpu.streams[0]) == cudaSuccess);
    if (cudaEventQuery(event.event) == cudaErrorNotReady) ++later;
    int asked = 0;
    while (cudaEventQuery(event.event) != cudaSuccess) REQUIRE(++asked < 1000);
    while (cudaStreamQuery(gpu.streams[0]) != cudaSuccess) REQUIRE(++asked < 1000);
  }
  CHECK(later > 0);
}

TEST_CASE("events measure time where they are made to") {
  Gpu gpu;
  TestEvent start(0), end(0), plain;
  for (const auto& event : {start.event, end.event, plain.event})
    REQUIRE(cudaEventRecord(event, gpu.streams[0]) == cudaSuccess);
  float milliseconds = -1;
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, start.event, end.event) == cudaSuccess);
  CHECK(milliseconds >= 0);
  CHECK(cudaEventElapsedTime(&milliseconds, start.event, plain.event) ==
        cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

TEST_CASE("launches that no GPU takes are errors") {
  Gpu gpu;
  const auto refused = [&](const Grid& grid, const char* name) {
    INFO(name);
    CHECK_THROWS_WITH_AS(gpu.run(0, nothing, grid), doctest::Contains(name), DeviceError);
  };
  gpu.run(0, nothing, {.blocks = {1, 65535}, .threads = 1});
  gpu.run(0, nothing, {.blocks = 1, .threads = {16, 1, 64}, .shared_bytes = 227 << 10});
  REQUIRE(cudaGetLastError() == cudaSuccess);
  refused({.blocks = 1, .threads = 1025}, "invalid configuration argument (cudaErrorInvalidConf");
  refused({.blocks = 1, .threads = {8, 1, 65}}, "cudaErrorInvalidConfiguration");
  refused({.blocks = 1, .threads = 0}, "cudaErrorInvalidConfiguration");
  refused({.blocks = {1, 65536}, .threads = 1}, "cudaErrorInvalidConfiguration");
  refused({.blocks = {1, 1, 65536}, .threads = 1}, "cudaErrorInvalidConfiguration");
  refused({.blocks = 1, .threads = 1, .shared_bytes = (227 << 10) + 1}, "cudaErrorInvalidValue");
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}

TEST_CASE("the environment says what GPUs there are") {
  const auto with = [](const char* name, const char* value, const auto& body) {
    setenv(name, value, 1);
    body();
    unsetenv(name);
  };
  with("SORTIE_EMULATED_GPU", "sm_86", [] {
    Gpu gpu;
    cudaDeviceProp properties;
    REQUIRE(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
    CHECK(properties.major == 8);
    CHECK(properties.minor == 6);
    gpu.run(0, nothing, {.blocks = 1, .threads = 32, .shared_bytes = 99 << 10});
    CHECK_THROWS_AS(gpu.run(0, nothing, {.blocks = 1, .threads = 32, .shared_bytes = 100 << 10}),
                    DeviceError);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  });
  int count = -1;
  with("SORTIE_EMULATED_GPUS", "2", [&] {
    CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
    CHECK(count == 2);
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  });
  with("SORTIE_EMULATED_GPUS", "0",
       [&] { CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice); });
  with("SORTIE_EMULATED_GPU_MEMORY", "65536", [] {
    Gpu gpu(7);  // used by no other test
    void* block = gpu.take(60000);
    CHECK(cudaMalloc(&block, 8192) == cudaErrorMemoryAllocation);
  });
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
}

TEST_CASE("what waits for others lets the rest go on, on both GPUs, asked or not") {
  std::atomic<int> arrived = 0;
  const auto all_here = [&] { return arrived == 2; };
  Gpu second(1), first(0);
  float* x = first.make(kSize, 1);
  for (Gpu* gpu : {&first, &second}) {
    REQUIRE(enqueue(gpu->streams[0], [&] { ++arrived; }) == cudaSuccess);
    REQUIRE(enqueue_when(gpu->streams[0], all_here, [&] { CHECK(arrived == 2); }) == cudaSuccess);
  }
  first.run(1, plus_one, kOne, x);
  CHECK(first.values(x, kSize) == std::vector<float>(kSize, 2));
  // Calls nothing that blocks.
  std::atomic<bool> done = false;
  REQUIRE(enqueue_when(
              second.streams[1], [] { return true; }, [&] { done = true; }) == cudaSuccess);
  for (int i = 0; i < 1000 && !done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(done);
}

TEST_CASE("streams wait for events of other GPUs") {
  Gpu first(0), second(1);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  TestEvent event;
  int order = 0;
  REQUIRE(enqueue(first.streams[0], [&] { CHECK(order++ == 0); }) == cudaSuccess);
  REQUIRE(cudaEventRecord(event.event, first.streams[0]) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second.streams[0], event.event, 0) == cudaSuccess);
  REQUIRE(enqueue(second.streams[0], [&] { CHECK(order++ == 1); }) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(second.streams[0]) == cudaSuccess);
  CHECK(order == 2);
}

}  // namespace emulated_cuda
