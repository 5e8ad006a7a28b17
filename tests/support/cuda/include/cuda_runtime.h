// CUDA's runtime for tests on machines without a GPU: the part of its API that Sortie uses, with
// the same names, and what kernels find around them. Threads of a block are fibers, which switch at
// barriers and shuffles, in a random order in between; streams run late, in any order that their
// events allow; device memory has no access rights outside of kernels and copies.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

// NOLINTBEGIN: the names are CUDA's.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaStreamNonBlocking = 1;

namespace emulated_cuda {
struct Stream;
struct Event;
}  // namespace emulated_cuda
using cudaStream_t = emulated_cuda::Stream*;
using cudaEvent_t = emulated_cuda::Event*;

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  std::size_t totalGlobalMem, sharedMemPerBlockOptin;
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);

cudaError_t cudaMalloc(void** block, std::size_t size);
template <class T>
cudaError_t cudaMalloc(T** block, std::size_t size) {
  return cudaMalloc(reinterpret_cast<void**>(block), size);
}
cudaError_t cudaFree(void* block);
/// Pinned memory of the host: copies from and to it happen when the stream gets there.
cudaError_t cudaMallocHost(void** block, std::size_t size);
cudaError_t cudaFreeHost(void* block);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* block, int value, std::size_t size, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
/// The lower the number, the sooner; no order of the emulation's depends on it.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
// NOLINTEND

namespace emulated_cuda {

/// What a kernel's thread knows of itself.
struct Place {
  dim3 thread, block, block_size, grid;
};
const Place& place();

void* shared_memory();
/// Until all threads of the block that have not returned are here.
void sync_block();
/// Every lane gives `size` bytes, at most 64, and gets those of all lanes, one after another, valid
/// until its next call. All 32 lanes take part.
const std::byte* exchange_in_warp(const void* mine, std::size_t size);

/// Adds a kernel to the stream.
void launch(dim3 blocks, dim3 threads, std::size_t shared_bytes, cudaStream_t stream,
            std::function<void()> kernel);
/// Adds other work on the device's memory to the stream; for libraries.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// The same for work that others have a part in: `attempt` is called, with the memory open, until
/// it returns true. From now on the device goes on by itself, as others wait for it.
void enqueue_attempt(cudaStream_t stream, std::function<bool()> attempt);

template <class T>
T of_lane(T value, int lane) {
  T result;
  std::memcpy(&result, exchange_in_warp(&value, sizeof value) + sizeof value * (lane & 31),
              sizeof result);
  return result;
}

}  // namespace emulated_cuda

#define threadIdx (::emulated_cuda::place().thread)
#define blockIdx (::emulated_cuda::place().block)
#define blockDim (::emulated_cuda::place().block_size)
#define gridDim (::emulated_cuda::place().grid)

inline void __syncthreads() { emulated_cuda::sync_block(); }
inline void __syncwarp(unsigned = 0xffffffffu) {
  const char nothing = 0;
  emulated_cuda::exchange_in_warp(&nothing, 1);
}
inline int emulated_lane() { return static_cast<int>(threadIdx.x % 32); }
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulated_cuda::of_lane(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulated_cuda::of_lane(value, emulated_lane() ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned distance) {
  const int lane = emulated_lane() + static_cast<int>(distance);
  return emulated_cuda::of_lane(value, lane < 32 ? lane : emulated_lane());
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned distance) {
  const int lane = emulated_lane() - static_cast<int>(distance);
  return emulated_cuda::of_lane(value, lane >= 0 ? lane : emulated_lane());
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const std::uint8_t mine = predicate != 0;
  const std::byte* all = emulated_cuda::exchange_in_warp(&mine, 1);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    votes |= static_cast<unsigned>(all[lane] != std::byte{}) << lane;
  return votes;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline float __uint_as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint32_t __float_as_uint(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
