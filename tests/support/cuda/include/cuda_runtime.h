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
#include <memory>

// NOLINTBEGIN: the names are CUDA's.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
  cudaDevAttrClockRate = 13,  // kHz
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMemoryClockRate = 36,  // kHz
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaStreamNonBlocking = 1;

namespace emulated_cuda {
inline constexpr std::size_t kMaxSharedBytes = 227 << 10;  // of a block, of sm_90
struct Stream;
struct Event;
struct Graph;
struct GraphExec;
}  // namespace emulated_cuda
using cudaStream_t = emulated_cuda::Stream*;
using cudaEvent_t = emulated_cuda::Event*;
using cudaGraph_t = std::shared_ptr<const emulated_cuda::Graph>*;
using cudaGraphExec_t = emulated_cuda::GraphExec*;

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
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
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
/// Makes memory of the host pinned.
cudaError_t cudaHostRegister(void* block, std::size_t size, unsigned flags);
cudaError_t cudaHostUnregister(void* block);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* block, int value, std::size_t size, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
// NOLINTEND

namespace emulated_cuda {

/// What a kernel's thread knows of itself.
struct Place {
  dim3 thread, block, block_size, grid;
  unsigned index = 0;           // of the thread in its block
  std::byte* shared = nullptr;  // memory of the block
};
/// Of the thread that this thread of the host runs.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Place here;

/// Until all threads of the block that have not returned are here.
void sync_block();
/// Until all lanes of the warp that have not returned are here.
void sync_warp();

/// Ends the process with a message that says where.
[[noreturn]] void trap();

inline constexpr std::size_t kExchangeBytes = 128;
/// Computes what the warp's 32 lanes get, of what they gave.
using WarpFunction = void (*)(const std::byte* given, std::byte* results);
/// Every lane gives `size` bytes, at most kExchangeBytes, and gets what `function` makes of those
/// of all lanes, one after another: at most 32 * kExchangeBytes, valid until its next call. All 32
/// lanes take part.
const std::byte* compute_in_warp(const void* mine, std::size_t size, WarpFunction function);
/// The same without a function: every lane gets what all gave.
inline const std::byte* exchange_in_warp(const void* mine, std::size_t size) {
  return compute_in_warp(mine, size, nullptr);
}

/// Adds a kernel to the stream; refused as CUDA does.
cudaError_t launch(dim3 blocks, dim3 threads, std::size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> kernel);
/// Adds other work on the device's memory to the stream; for libraries.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);
/// The same, once `ready` says so, which is asked again and again: for work that GPUs or processes
/// do together. From the first such work on, GPUs go on without a thread that waits for them.
/// `work` touches memory of the stream's GPU and of the host only.
cudaError_t enqueue_when(cudaStream_t stream, std::function<bool()> ready,
                         std::function<void()> work, std::function<bool()> has_news = {});

template <class T>
T of_lane(T value, int lane) {
  T result;
  std::memcpy(&result, exchange_in_warp(&value, sizeof value) + sizeof value * (lane & 31),
              sizeof result);
  return result;
}

}  // namespace emulated_cuda

#define threadIdx (::emulated_cuda::here.thread)
#define blockIdx (::emulated_cuda::here.block)
#define blockDim (::emulated_cuda::here.block_size)
#define gridDim (::emulated_cuda::here.grid)

inline void __syncthreads() {
  emulated_cuda::sync_block();
}
inline void __syncwarp(unsigned = 0xffffffffu) {
  emulated_cuda::sync_warp();
}
inline int emulated_lane() {
  return static_cast<int>(emulated_cuda::here.index % 32);
}
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
/// The lanes with the same value.
inline unsigned __match_any_sync(unsigned, int value) {
  int all[32];
  std::memcpy(all, emulated_cuda::exchange_in_warp(&value, sizeof value), sizeof all);
  unsigned lanes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    lanes |= static_cast<unsigned>(all[lane] == value) << lane;
  return lanes;
}
namespace emulated_cuda {
template <class Better>
unsigned best_of_lanes(unsigned value, const Better& better) {
  unsigned all[32];
  std::memcpy(all, exchange_in_warp(&value, sizeof value), sizeof all);
  for (const unsigned other : all)
    if (better(other, value)) value = other;
  return value;
}
}  // namespace emulated_cuda
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return emulated_cuda::best_of_lanes(value, std::greater<unsigned>());
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  return emulated_cuda::best_of_lanes(value, std::less<unsigned>());
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  unsigned all[32], sum = 0;
  std::memcpy(all, emulated_cuda::exchange_in_warp(&value, sizeof value), sizeof all);
  for (const unsigned other : all) sum += other;
  return sum;
}
/// Ends the kernel, and all that uses the GPU, with an error.
[[noreturn]] inline void __trap() {
  emulated_cuda::trap();
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
/// Number of the lowest bit that is set, from 1; 0 if none is.
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}

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
inline int max(int a, int b) {
  return a > b ? a : b;
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float a, float b) {
  if (std::abs(b) > 0x1p126f) return std::isinf(a) ? a * 0.0f : 0.0f;  // as GPUs do
  return a / b;
}
