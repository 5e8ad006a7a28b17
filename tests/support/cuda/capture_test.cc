// Graphs of an emulated GPU: recorded once, run repeatedly, in any order that their dependencies
// allow.
#include <doctest/doctest.h>

#include <thread>

#include "tests/support/cuda/test_gpu.h"

namespace emulated_cuda {
namespace {

using sortie::trainer::ops::cuda::Grid;

__global__ void add_one(float* x) {
  x[threadIdx.x] += 1;
}
__global__ void add_to(const float* x, float* y) {
  y[threadIdx.x] += x[threadIdx.x];
}

constexpr std::size_t kSize = 32;
const Grid kOne{.blocks = 1, .threads = kSize};

struct Captured {
  Captured() {
    for (cudaEvent_t* event : {&fork, &join})
      REQUIRE(cudaEventCreateWithFlags(event, cudaEventDisableTiming) == cudaSuccess);
  }
  ~Captured() {
    if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
    for (const cudaEvent_t event : {fork, join}) (void)cudaEventDestroy(event);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  void begin() {
    REQUIRE(cudaStreamBeginCapture(gpu.streams[0], cudaStreamCaptureModeThreadLocal) ==
            cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(gpu.streams[0], &graph);
    CHECK((graph == nullptr) == (error != cudaSuccess));
    if (graph != nullptr) {
      REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
      REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    }
    return error;
  }
  /// Orders two streams by an event.
  void order(std::size_t before, std::size_t after, cudaEvent_t event) {
    REQUIRE(cudaEventRecord(event, gpu.streams[before]) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(gpu.streams[after], event, 0) == cudaSuccess);
  }

  Gpu gpu;
  cudaEvent_t fork = nullptr, join = nullptr;
  cudaGraphExec_t exec = nullptr;
};

}  // namespace

TEST_CASE("a captured graph of two streams runs when it is launched, in its order") {
  Captured it;
  float *x = it.gpu.make(kSize, 0), *y = it.gpu.make(kSize, 0), *z = it.gpu.make(kSize, 0);
  it.begin();
  it.gpu.run(0, add_one, kOne, x);
  it.order(0, 1, it.fork);
  it.gpu.run(1, add_to, kOne, x, y);
  it.gpu.run(0, add_to, kOne, x, z);
  it.order(1, 0, it.join);
  it.gpu.run(0, add_to, kOne, y, z);
  REQUIRE(it.end() == cudaSuccess);
  CHECK(it.gpu.values(x, kSize) == std::vector<float>(kSize, 0));  // recorded, not run
  float x_is = 0, y_is = 0, z_is = 0;
  for (int launch = 0; launch < 30; ++launch) {
    REQUIRE(cudaGraphLaunch(it.exec, it.gpu.streams[launch % 2]) == cudaSuccess);
    x_is += 1;
    y_is += x_is;
    z_is += x_is + y_is;
  }
  CHECK(it.gpu.values(x, kSize) == std::vector<float>(kSize, x_is));
  CHECK(it.gpu.values(y, kSize) == std::vector<float>(kSize, y_is));
  CHECK(it.gpu.values(z, kSize) == std::vector<float>(kSize, z_is));
  // Both streams accept work as before.
  it.gpu.run(1, add_one, kOne, x);
  CHECK(it.gpu.values(x, kSize) == std::vector<float>(kSize, x_is + 1));
}

TEST_CASE("a graph is late, and in order with its stream") {
  int late = 0;
  for (int trial = 0; trial < 100; ++trial) {
    Captured it;
    float *x = it.gpu.make(kSize, 0), *y = it.gpu.make(kSize, 0);
    it.begin();
    for (int i = 0; i < 4; ++i) it.gpu.run(0, add_one, kOne, x);
    REQUIRE(it.end() == cudaSuccess);
    it.gpu.run(0, add_one, kOne, x);
    REQUIRE(cudaGraphLaunch(it.exec, it.gpu.streams[0]) == cudaSuccess);
    it.gpu.run(1, add_to, kOne, x, y);  // not ordered with the graph
    it.gpu.run(0, add_one, kOne, x);
    CHECK(it.gpu.values(x, kSize) == std::vector<float>(kSize, 6));
    const float seen = it.gpu.values(y, kSize)[0];
    if (seen > 1 && seen < 5) ++late;  // between two nodes
  }
  CHECK(late > 0);
}

TEST_CASE("copies to pinned memory are nodes") {
  Captured it;
  float* x = it.gpu.make(kSize, 0);
  void* block = nullptr;
  REQUIRE(cudaMallocHost(&block, sizeof(float)) == cudaSuccess);
  auto* pinned = static_cast<float*>(block);
  *pinned = 7;
  it.begin();
  it.gpu.run(0, add_one, kOne, x);
  REQUIRE(cudaMemcpyAsync(pinned, x, sizeof(float), cudaMemcpyDeviceToHost, it.gpu.streams[0]) ==
          cudaSuccess);
  REQUIRE(it.end() == cudaSuccess);
  CHECK(*pinned == 7);
  for (int launch = 1; launch < 4; ++launch) {
    REQUIRE(cudaGraphLaunch(it.exec, it.gpu.streams[0]) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(it.gpu.streams[0]) == cudaSuccess);
    CHECK(*pinned == static_cast<float>(launch));
  }
  CHECK(cudaFreeHost(block) == cudaSuccess);
}

TEST_CASE("calls that wait end a capture") {
  const auto ended_by = [](cudaError_t expected, const auto& call) {
    Captured it;
    float* x = it.gpu.make(kSize, 0);
    REQUIRE(cudaEventRecord(it.join, it.gpu.streams[1]) == cudaSuccess);
    it.begin();
    cudaStreamCaptureStatus status;
    REQUIRE(cudaStreamIsCapturing(it.gpu.streams[0], &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusActive);
    CHECK(call(it, x) == expected);
    CHECK(cudaGetLastError() == expected);
    REQUIRE(cudaStreamIsCapturing(it.gpu.streams[0], &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    CHECK(it.end() == cudaErrorStreamCaptureInvalidated);
    it.gpu.run(0, add_one, kOne, x);
    CHECK(it.gpu.values(x, 1)[0] == 1);
  };
  constexpr auto kUnsupported = cudaErrorStreamCaptureUnsupported;
  ended_by(kUnsupported, [](auto& it, float*) { return cudaStreamSynchronize(it.gpu.streams[0]); });
  ended_by(kUnsupported, [](auto& it, float*) { return cudaStreamQuery(it.gpu.streams[0]); });
  ended_by(kUnsupported, [](auto&, float*) { return cudaDeviceSynchronize(); });
  ended_by(kUnsupported, [](auto& it, float*) { return cudaEventQuery(it.join); });
  ended_by(kUnsupported, [](auto& it, float*) { return cudaEventSynchronize(it.join); });
  ended_by(kUnsupported, [](auto&, float*) {
    void* block = nullptr;
    return cudaMalloc(&block, 64);
  });
  ended_by(kUnsupported, [](auto&, float* x) { return cudaFree(x); });
  ended_by(kUnsupported, [](auto&, float* x) {
    float value = 0;
    return cudaMemcpy(&value, x, sizeof value, cudaMemcpyDeviceToHost);
  });
  ended_by(kUnsupported, [](auto& it, float* x) {
    float value = 0;
    return cudaMemcpyAsync(&value, x, sizeof value, cudaMemcpyDeviceToHost, it.gpu.streams[0]);
  });
  ended_by(cudaErrorCapturedEvent, [](auto& it, float*) {
    REQUIRE(cudaEventRecord(it.fork, it.gpu.streams[0]) == cudaSuccess);
    return cudaEventQuery(it.fork);
  });
  ended_by(cudaErrorStreamCaptureIsolation,
           [](auto& it, float*) { return cudaStreamWaitEvent(it.gpu.streams[0], it.join, 0); });
  ended_by(cudaErrorStreamCaptureUnmatched, [](auto& it, float*) {
    it.order(0, 1, it.fork);
    cudaGraph_t graph = nullptr;
    return cudaStreamEndCapture(it.gpu.streams[1], &graph);
  });
}

TEST_CASE("a capture ends with all of its streams joined, on the thread that began it") {
  Captured it;
  float* x = it.gpu.make(kSize, 0);
  it.begin();
  CHECK(cudaStreamBeginCapture(it.gpu.streams[0], cudaStreamCaptureModeThreadLocal) ==
        cudaErrorIllegalState);
  it.order(0, 1, it.fork);
  it.gpu.run(1, add_one, kOne, x);
  CHECK(it.end() == cudaErrorStreamCaptureUnjoined);
  CHECK(cudaStreamWaitEvent(it.gpu.streams[1], it.fork, 0) == cudaErrorCapturedEvent);
  it.begin();
  it.gpu.run(0, add_one, kOne, x);
  std::thread([&] {
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(it.gpu.streams[0], &graph) == cudaErrorStreamCaptureWrongThread);
    // Calls of another thread are not affected.
    CHECK(cudaStreamSynchronize(it.gpu.streams[1]) == cudaSuccess);
    void* block = nullptr;
    CHECK(cudaMalloc(&block, 64) == cudaSuccess);
    CHECK(cudaFree(block) == cudaSuccess);
  }).join();
  CHECK(it.end() == cudaSuccess);
}

TEST_CASE("two captures do not become one") {
  Captured it;
  it.begin();
  REQUIRE(cudaStreamBeginCapture(it.gpu.streams[1], cudaStreamCaptureModeRelaxed) == cudaSuccess);
  REQUIRE(cudaEventRecord(it.fork, it.gpu.streams[0]) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(it.gpu.streams[1], it.fork, 0) == cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(it.gpu.streams[1], &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(it.end() == cudaErrorStreamCaptureInvalidated);
}

}  // namespace emulated_cuda
