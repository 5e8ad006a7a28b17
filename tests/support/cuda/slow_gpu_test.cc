// Emulated GPUs that are slow or hang, on request.
#include <doctest/doctest.h>

#include "tests/support/cuda/streams.h"
#include "tests/support/cuda/test_gpu.h"

namespace emulated_cuda {
namespace {

using sortie::trainer::ops::cuda::Grid;

__global__ void count_up(float* x) {
  x[threadIdx.x] += 1;
}

constexpr std::size_t kSize = 32;
const Grid kOne{.blocks = 1, .threads = kSize};

struct TimedEvent {
  TimedEvent() { REQUIRE(cudaEventCreate(&event) == cudaSuccess); }
  ~TimedEvent() { (void)cudaEventDestroy(event); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  cudaEvent_t event = nullptr;
};

}  // namespace

TEST_CASE("a GPU that hangs stops each stream at its next kernel, until it goes on") {
  Gpu gpu;
  float* x = gpu.make(kSize, 0);
  void* block = nullptr;
  REQUIRE(cudaMallocHost(&block, sizeof(float)) == cudaSuccess);
  sortie_emulated_hang(0, 1);
  for (int i = 0; i < 2; ++i) gpu.run(0, count_up, kOne, x);
  for (int i = 0; i < 50; ++i) CHECK(cudaStreamQuery(gpu.streams[0]) == cudaErrorNotReady);
  REQUIRE(cudaMemcpyAsync(block, x, sizeof(float), cudaMemcpyDeviceToHost, gpu.streams[1]) ==
          cudaSuccess);
  REQUIRE(cudaStreamSynchronize(gpu.streams[1]) == cudaSuccess);
  CHECK(*static_cast<float*>(block) == 1);
  sortie_emulated_hang(0, kNever);
  CHECK(gpu.values(x, kSize) == std::vector<float>(kSize, 2));
  CHECK(cudaFreeHost(block) == cudaSuccess);
}

TEST_CASE("a slow GPU takes time of its clock for each kernel, also within a graph") {
  Gpu gpu;
  float* x = gpu.make(kSize, 0);
  const auto milliseconds = [&](const auto& work) {
    const TimedEvent begin, end;
    REQUIRE(cudaEventRecord(begin.event, gpu.streams[0]) == cudaSuccess);
    work();
    REQUIRE(cudaEventRecord(end.event, gpu.streams[0]) == cudaSuccess);
    REQUIRE(cudaEventSynchronize(end.event) == cudaSuccess);
    float took = 0;
    REQUIRE(cudaEventElapsedTime(&took, begin.event, end.event) == cudaSuccess);
    return took;
  };
  const auto kernels = [&] {
    for (int i = 0; i < 3; ++i) gpu.run(0, count_up, kOne, x);
  };
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaStreamBeginCapture(gpu.streams[0], cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  kernels();
  REQUIRE(cudaStreamEndCapture(gpu.streams[0], &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
  const auto launch = [&] { REQUIRE(cudaGraphLaunch(exec, gpu.streams[0]) == cudaSuccess); };
  CHECK(milliseconds(kernels) < 1);
  CHECK(milliseconds(launch) < 1);
  sortie_emulated_slow(0, 5'000'000);
  CHECK(milliseconds(kernels) >= 15);
  CHECK(milliseconds(launch) >= 15);
  sortie_emulated_slow(0, 0);
  const float idle = milliseconds([&] {
    REQUIRE(cudaStreamSynchronize(gpu.streams[0]) == cudaSuccess);
    sortie_emulated_idle(0, 7'000'000);
  });
  CHECK(idle >= 7);
  CHECK(idle < 8);
  REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
}

}  // namespace emulated_cuda
