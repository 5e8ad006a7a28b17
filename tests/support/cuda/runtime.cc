// CUDA's runtime on emulated GPUs: the calls about devices, memory, streams and events.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/support/cuda/capture.h"
#include "tests/support/cuda/faults.h"
#include "tests/support/cuda/grid.h"
#include "tests/support/cuda/streams.h"

namespace emulated_cuda {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

thread_local int chosen = 0;
thread_local cudaError_t last_error = cudaSuccess;

/// What differs between GPUs: SORTIE_EMULATED_GPU=sm_86.
struct Kind {
  std::string_view name = "sm_90";
  int major = 9, minor = 0;
  std::size_t shared_bytes = kMaxSharedBytes;
};
const Kind& kind() {
  static const Kind chosen_kind = [] {
    constexpr std::array kKinds{Kind{"sm_80", 8, 0, 163 << 10},   Kind{"sm_86", 8, 6, 99 << 10},
                                Kind{"sm_89", 8, 9, 99 << 10},    Kind{},
                                Kind{"sm_100", 10, 0, 227 << 10}, Kind{"sm_120", 12, 0, 99 << 10}};
    const char* text = std::getenv("SORTIE_EMULATED_GPU");
    if (text == nullptr) return Kind{};
    const auto found = std::ranges::find(kKinds, std::string_view(text), &Kind::name);
    SORTIE_CHECK(found != kKinds.end(), "SORTIE_EMULATED_GPU is \"{}\"", text);
    return *found;
  }();
  return chosen_kind;
}

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
const ErrorText& text_of(cudaError_t error) {
#define SORTIE_ERROR(name, text) \
  ErrorText {                    \
    name, #name, text            \
  }
  static constexpr std::array kTexts{
      SORTIE_ERROR(cudaSuccess, "no error"),
      SORTIE_ERROR(cudaErrorInvalidValue, "invalid argument"),
      SORTIE_ERROR(cudaErrorMemoryAllocation, "out of memory"),
      SORTIE_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
      SORTIE_ERROR(cudaErrorInsufficientDriver,
                   "CUDA driver version is insufficient for CUDA runtime version"),
      SORTIE_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
      SORTIE_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
      SORTIE_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
      SORTIE_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
      SORTIE_ERROR(cudaErrorNotReady, "device not ready"),
      SORTIE_ERROR(cudaErrorHostMemoryAlreadyRegistered,
                   "part or all of the requested memory range is already mapped"),
      SORTIE_ERROR(cudaErrorHostMemoryNotRegistered,
                   "pointer does not correspond to a registered memory region"),
      SORTIE_ERROR(cudaErrorStreamCaptureUnsupported,
                   "operation not permitted when stream is capturing"),
      SORTIE_ERROR(cudaErrorStreamCaptureInvalidated,
                   "operation failed due to a previous error during capture"),
      SORTIE_ERROR(cudaErrorStreamCaptureMerge,
                   "operation would result in a merge of separate capture sequences"),
      SORTIE_ERROR(cudaErrorStreamCaptureUnmatched,
                   "capture was not ended in the same stream as "
                   "it began"),
      SORTIE_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
      SORTIE_ERROR(cudaErrorStreamCaptureIsolation,
                   "dependency created on uncaptured work in another stream"),
      SORTIE_ERROR(cudaErrorCapturedEvent,
                   "operation not permitted on an event last recorded in a capturing stream"),
      SORTIE_ERROR(cudaErrorStreamCaptureWrongThread,
                   "attempt to terminate a thread-local capture sequence from another thread"),
  };
#undef SORTIE_ERROR
  const auto found = std::ranges::find(kTexts, error, &ErrorText::error);
  SORTIE_CHECK(found != kTexts.end(), "CUDA's error {} has no text", static_cast<int>(error));
  return *found;
}

/// Blocks of pinned memory.
struct Pinned {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> blocks;
  bool has(const void* address) {
    std::lock_guard lock(mutex);
    const auto* byte = static_cast<const std::byte*>(address);
    auto after = blocks.upper_bound(byte);
    if (after == blocks.begin()) return false;
    --after;
    return byte < after->first + after->second;
  }
};
Pinned& pinned() {
  static Pinned all;
  return all;
}

/// Whether a copy's bytes on the stream's GPU are in one of its blocks.
bool on_device(const Stream& stream, const void* address, std::size_t size) {
  Device& it = device(stream.device);
  Lock lock(it.mutex);
  return size == 0 || it.memory.has(address, size);
}

cudaError_t copy(void* to, const void* from, std::size_t size, cudaMemcpyKind direction,
                 Stream& stream) {
  const bool from_host = direction == cudaMemcpyHostToDevice || direction == cudaMemcpyHostToHost;
  const bool to_host = direction == cudaMemcpyDeviceToHost || direction == cudaMemcpyHostToHost;
  if ((!from_host && !on_device(stream, from, size)) || (!to_host && !on_device(stream, to, size)))
    return failed(cudaErrorInvalidValue);
  const bool waits = (from_host && !pinned().has(from)) || (to_host && !pinned().has(to));
  // CUDA's own rule for these is not clear.
  if (waits && stream.capture) return refuse_in_capture(*stream.capture);
  if (from_host && waits && !to_host) {
    // Taken now, as CUDA does with memory that is not pinned.
    auto bytes = std::make_shared<std::vector<std::byte>>(size);
    std::memcpy(bytes->data(), from, size);
    return add_work(stream, {.run = [=] { std::memcpy(to, bytes->data(), size); }});
  }
  const cudaError_t added = add_work(stream, {.run = [=] { std::memcpy(to, from, size); }});
  return waits ? cudaStreamSynchronize(&stream) : added;
}

}  // namespace

cudaError_t failed(cudaError_t error) {
  return last_error = error;
}

cudaError_t add_work(Stream& stream, Work work) {
  Device& it = device(stream.device);
  Lock lock(it.mutex);
  if (stream.capture) return capture_work(stream, std::move(work));
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
  return add_work(*stream, {.run = [=, index = stream->device, kernel = std::move(kernel)] {
    run_grid(blocks, threads, shared_bytes, kernel, device(index).random());
  }});
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  SORTIE_CHECK(stream != nullptr, "work for the default stream");
  return add_work(*stream, {.run = std::move(work)});
}

cudaError_t enqueue_when(cudaStream_t stream, std::function<bool()> ready,
                         std::function<void()> work) {
  SORTIE_CHECK(stream != nullptr, "work for the default stream");
  return add_work(*stream, {.run = std::move(work), .ready = std::move(ready)});
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

const char* cudaGetErrorName(cudaError_t error) {
  return text_of(error).name;
}
const char* cudaGetErrorString(cudaError_t error) {
  return text_of(error).text;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return *version = 13000, cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  return *version = 13000, cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (index < 0 || index >= device_count()) return failed(cudaErrorInvalidDevice);
  *properties = {"emulated GPU",     kind().major, kind().minor, 4, device(index).memory.bytes(),
                 kind().shared_bytes};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp properties;
  const cudaError_t found = cudaGetDeviceProperties(&properties, index);
  if (found != cudaSuccess) return found;
  switch (attribute) {
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
  it.run_until([&] {
    return std::ranges::all_of(it.streams, [](const Stream* s) { return s->items.empty(); });
  });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Device& it = device(chosen);
  Lock lock(it.mutex);
  *total = it.memory.bytes();
  *free = it.memory.free_bytes();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** block, std::size_t size) {
  *block = nullptr;
  if (const cudaError_t refused = refuse_in_captures(); refused != cudaSuccess) return refused;
  if (size == 0) return cudaSuccess;
  name_faults();
  Device& it = device(chosen);
  Lock lock(it.mutex);
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
cudaError_t cudaMallocHost(void** block, std::size_t size) {
  if (const cudaError_t refused = refuse_in_captures(); refused != cudaSuccess) return refused;
  *block = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  if (*block == nullptr) return failed(cudaErrorMemoryAllocation);
  return cudaHostRegister(*block, size, 0);
}
cudaError_t cudaFreeHost(void* block) {
  if (block == nullptr) return cudaSuccess;
  const cudaError_t refused = refuse_in_captures();
  if (refused != cudaSuccess) return refused;
  if (cudaHostUnregister(block) != cudaSuccess) return failed(cudaErrorInvalidValue);
  std::free(block);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* block, std::size_t size, unsigned) {
  if (size == 0) return failed(cudaErrorInvalidValue);
  std::lock_guard lock(pinned().mutex);
  if (!pinned().blocks.emplace(static_cast<std::byte*>(block), size).second)
    return failed(cudaErrorHostMemoryAlreadyRegistered);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* block) {
  std::lock_guard lock(pinned().mutex);
  if (pinned().blocks.erase(static_cast<std::byte*>(block)) == 0)
    return failed(cudaErrorHostMemoryNotRegistered);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind direction,
                            cudaStream_t stream) {
  SORTIE_CHECK(stream != nullptr, "a copy on the default stream");
  return copy(to, from, size, direction, *stream);
}
/// On a stream of its own: the default one waits for no stream that is cudaStreamNonBlocking.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind direction) {
  if (const cudaError_t refused = refuse_in_captures(); refused != cudaSuccess) return refused;
  cudaStream_t own = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = copy(to, from, size, direction, *own);
  (void)cudaStreamDestroy(own);
  return error;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind direction, cudaStream_t stream) {
  SORTIE_CHECK(direction == cudaMemcpyDeviceToDevice, "a copy of rows between host and device");
  if (height == 0 || width == 0) return cudaSuccess;
  if (to_pitch < width || from_pitch < width ||
      !on_device(*stream, to, (height - 1) * to_pitch + width) ||
      !on_device(*stream, from, (height - 1) * from_pitch + width))
    return failed(cudaErrorInvalidValue);
  return add_work(*stream, {.run = [=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, width);
  }});
}
cudaError_t cudaMemsetAsync(void* block, int value, std::size_t size, cudaStream_t stream) {
  if (!on_device(*stream, block, size)) return failed(cudaErrorInvalidValue);
  return add_work(*stream, {.run = [=] { std::memset(block, value, size); }});
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
