// CUDA's runtime on emulated GPUs: the calls for devices, memory, streams and events.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "tests/support/cuda/capture.h"
#include "tests/support/cuda/faults.h"
#include "tests/support/cuda/grid.h"
#include "tests/support/cuda/streams.h"
#include "tests/support/cuda/surroundings.h"

namespace emulated_cuda {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

thread_local int chosen = 0;
thread_local int running = 0;  // the GPU whose kernel this thread runs

/// Properties that differ between GPUs: SORTIE_EMULATED_GPU=sm_86.
struct Kind {
  std::string_view name = "sm_90";
  int major = 9, minor = 0;
  std::size_t shared_bytes = kMaxSharedBytes;
};
Kind kind() {
  constexpr std::array kKinds{Kind{"sm_75", 7, 5, 64 << 10},
                              Kind{"sm_80", 8, 0, 163 << 10},
                              Kind{"sm_86", 8, 6, 99 << 10},
                              Kind{"sm_89", 8, 9, 99 << 10},
                              Kind{},
                              Kind{"sm_100", 10, 0, 227 << 10},
                              Kind{"sm_120", 12, 0, 99 << 10}};
  const char* text = std::getenv("SORTIE_EMULATED_GPU");
  if (text == nullptr) return {};
  const auto* found = std::ranges::find(kKinds, std::string_view(text), &Kind::name);
  SORTIE_CHECK(found != kKinds.end(), "SORTIE_EMULATED_GPU is \"{}\"", text);
  return *found;
}

}  // namespace

cudaError_t add_work(Stream& stream, Work work) {
  Device& it = device(stream.device);
  Lock lock(it.mutex);
  if (stream.capture) return capture_work(stream, std::move(work));
  count_launch();
  it.add(stream, {.work = std::move(work)});
  return cudaSuccess;
}

cudaError_t launch(dim3 blocks, dim3 threads, std::size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> kernel) {
  SORTIE_CHECK(stream != nullptr, "a kernel for the default stream");
  const auto product = [](dim3 size) { return std::uint64_t{size.x} * size.y * size.z; };
  if (product(threads) == 0 || product(threads) > 1024 || threads.z > 64 || product(blocks) == 0 ||
      blocks.x > 0x7fffffffu || blocks.y > 65535 || blocks.z > 65535)
    return failed(cudaErrorInvalidConfiguration);
  if (shared_bytes > kind().shared_bytes) return failed(cudaErrorInvalidValue);
  return add_work(*stream, {.run =
                                [=, index = stream->device, kernel = std::move(kernel)] {
                                  running = index;
                                  run_grid(blocks, threads, shared_bytes, kernel,
                                           device(index).random());
                                },
                            .kernel = true});
}

std::uint64_t time_ns() {
  return static_cast<std::uint64_t>(device(running).clock.count());
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  SORTIE_CHECK(stream != nullptr, "work for the default stream");
  return add_work(*stream, {.run = std::move(work)});
}

cudaError_t enqueue_when(cudaStream_t stream, std::function<bool()> ready,
                         std::function<void()> work, std::function<bool()> has_news) {
  SORTIE_CHECK(stream != nullptr, "work for the default stream");
  return add_work(
      *stream,
      {.run = std::move(work), .ready = std::move(ready), .has_news = std::move(has_news)});
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

cudaError_t cudaRuntimeGetVersion(int* version) {
  return *version = kRuntimeVersion, cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  return *version = driver_version(), cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (driver_version() < kRuntimeVersion) return failed(cudaErrorInsufficientDriver);
  *count = device_count();
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (index < 0 || index >= device_count()) return failed(cudaErrorInvalidDevice);
  const char* lost = std::getenv("SORTIE_EMULATED_LOST_GPU");
  if (lost != nullptr && std::atoi(lost) == index) return failed(cudaErrorIllegalState);
  *properties = {"emulated GPU",     kind().major, kind().minor, 4, device(index).memory.bytes(),
                 kind().shared_bytes};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp properties;
  const cudaError_t found = cudaGetDeviceProperties(&properties, index);
  if (found != cudaSuccess) return found;
  switch (attribute) {
    case cudaDevAttrClockRate:
      *value = 1'830'000;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 2'619'000;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    default:
      return failed(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= device_count()) return failed(cudaErrorInvalidDevice);
  // The first call for a GPU starts to use it, which later calls do not repeat.
  static std::atomic<std::uint32_t> begun = 0;  // a bit per GPU
  const std::uint32_t bit = std::uint32_t{1} << index;
  if ((begun & bit) == 0) {
    if (const cudaError_t why = refused(index); why != cudaSuccess) return failed(why);
    begun |= bit;
  }
  chosen = index;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) {
  return *index = chosen, cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t refused = refuse_in_captures(); refused != cudaSuccess) return refused;
  Device& it = device(chosen);
  Lock lock(it.mutex);
  if (!it.idle()) count_wait();
  it.run_until([&] { return it.idle(); });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Device& it = device(chosen);
  Lock lock(it.mutex);
  *total = it.memory.bytes();
  const std::size_t others = used_by_others(), own_free = it.memory.free_bytes();
  *free = own_free > others ? own_free - others : 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** block, std::size_t size) {
  *block = nullptr;
  if (const cudaError_t refused = refuse_in_captures(); refused != cudaSuccess) return refused;
  if (size == 0) return cudaSuccess;
  name_faults();
  Device& it = device(chosen);
  Lock lock(it.mutex);
  if (size + used_by_others() > it.memory.free_bytes()) return failed(cudaErrorMemoryAllocation);
  *block = it.memory.take(size);
  return *block != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* block) {
  if (block == nullptr) return cudaSuccess;
  const cudaError_t waited = cudaDeviceSynchronize();
  if (waited != cudaSuccess) return waited;
  Device& it = device(chosen);
  Lock lock(it.mutex);
  SORTIE_CHECK(it.memory.give_back(block),
               "cudaFree of what is not, or no longer, a block of device memory");
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  SORTIE_CHECK(flags == cudaStreamNonBlocking, "a stream that the default one waits for");
  Device& it = device(chosen);
  Lock lock(it.mutex);
  *stream = new Stream{.device = chosen};
  it.streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t waited = cudaStreamSynchronize(stream);
  if (waited != cudaSuccess) return waited;
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  std::erase(it.streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->capture) return refuse_in_capture(*stream->capture);
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  if (!stream->items.empty()) count_wait();
  it.run_until([&] { return stream->items.empty(); });
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->capture) return refuse_in_capture(*stream->capture);
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  if (!stream->items.empty()) it.do_some();
  return stream->items.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  if (stream->capture || event->capture) return capture_wait(*stream, *event);
  if (event->latest)
    it.add(*stream, {.after = event->latest, .foreign = event->device != stream->device});
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new Event{.device = chosen, .timed = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return failed(cudaErrorInvalidResourceHandle);
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  event->capture = stream->capture;
  event->nodes = stream->last;
  if (event->capture) return cudaSuccess;
  event->latest = std::make_shared<Point>();
  it.add(*stream, {.passes = event->latest});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->capture) return refuse_captured(*event);
  if (const cudaError_t refused = refuse_in_captures(); refused != cudaSuccess) return refused;
  if (!event->latest || event->latest->passed) return cudaSuccess;
  Device& it = device(event->device);
  Lock lock(it.mutex);
  it.do_some();
  return event->latest->passed ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->capture) return refuse_captured(*event);
  if (const cudaError_t refused = refuse_in_captures(); refused != cudaSuccess) return refused;
  if (!event->latest) return cudaSuccess;
  Device& it = device(event->device);
  Lock lock(it.mutex);
  if (!event->latest->passed && !it.has_more_than(*event->latest)) count_wait();
  it.run_until([&] { return event->latest->passed.load(); });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  for (const Event* event : {start, end}) {
    if (!event->timed || !event->latest) return failed(cudaErrorInvalidResourceHandle);
    if (!event->latest->passed) return cudaErrorNotReady;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->latest->when - start->latest->when).count();
  return cudaSuccess;
}
