// Copies of CUDA's runtime on emulated GPUs, and the host's pinned memory, whose copies do not
// block.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "common/base/check.h"
#include "tests/support/cuda/capture.h"
#include "tests/support/cuda/streams.h"

namespace emulated_cuda {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

/// Blocks of pinned host memory.
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

std::atomic<std::uint64_t> slow_reads = 0, read_bytes = 0;

/// Whether the bytes are in one block of the stream's GPU.
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
  // What CUDA does in this case is not documented clearly.
  if (waits && stream.capture) return refuse_in_capture(*stream.capture);
  if (from_host && waits && !to_host) {
    // Copied now, as CUDA does with memory that is not pinned.
    auto bytes = std::make_shared<std::vector<std::byte>>(size);
    std::memcpy(bytes->data(), from, size);
    return add_work(stream, {.run = [=] { std::memcpy(to, bytes->data(), size); }});
  }
  const cudaError_t added = add_work(stream, {.run = [=] { std::memcpy(to, from, size); }});
  return waits ? cudaStreamSynchronize(&stream) : added;
}

}  // namespace
}  // namespace emulated_cuda

using namespace emulated_cuda;

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
  if (direction == cudaMemcpyDeviceToHost) read_bytes += size;
  if (direction == cudaMemcpyDeviceToHost && !pinned().has(to)) ++slow_reads;
  return copy(to, from, size, direction, *stream);
}
/// Uses the default stream, which is not synchronized with streams that are cudaStreamNonBlocking.
/// A copy from memory that is not pinned may return before the GPU has received it; all other
/// copies between host and GPU are complete on return.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind direction) {
  if (const cudaError_t refused = refuse_in_captures(); refused != cudaSuccess) return refused;
  int index = 0;
  (void)cudaGetDevice(&index);
  Stream& stream = device(index).default_stream();
  const cudaError_t added = copy(to, from, size, direction, stream);
  const bool waits = direction == cudaMemcpyDeviceToHost ||
                     (direction == cudaMemcpyHostToDevice && pinned().has(from));
  return added == cudaSuccess && waits ? cudaStreamSynchronize(&stream) : added;
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

/// For tests, which look it up in the module: how often an asynchronous copy to the host had to
/// block because its memory is not pinned.
extern "C" [[gnu::visibility("default")]] std::uint64_t sortie_emulated_slow_reads() {
  return emulated_cuda::slow_reads;
}

/// Same: number of bytes that asynchronous copies brought to the host.
extern "C" [[gnu::visibility("default")]] std::uint64_t sortie_emulated_read_bytes() {
  return emulated_cuda::read_bytes;
}
