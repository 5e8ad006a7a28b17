// The primitives of kernels, the same under nvcc and under the emulation of the tests. A kernel is
// a __global__ function of a .cu file of this folder, started by launch(). It uses only what is
// here, in tensor_core.h, warpgroup.h or fp8_codes.h:
//   - threadIdx, blockIdx, blockDim, gridDim; __syncthreads(), __syncwarp(); shuffles, votes and
//     matches in which all lanes of the warp take part; __trap() instead of invalid writes;
//   - shared memory from shared_memory<T>(), its size given to launch(): no __shared__ variables;
//   - no atomics: sums are taken in a fixed order, so that every run gives the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "trainer/tensor/dtype.h"

namespace sortie::trainer::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
/// For a block whose threads are along x.
__device__ __forceinline__ int lane_of_thread() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ __forceinline__ int warp_of_thread() {
  return static_cast<int>(threadIdx.x) / kWarp;
}

#ifdef __CUDACC__
/// The block's shared memory, of the size given to launch(); aligned as wgmma's operands must be.
template <class T>
__device__ __forceinline__ T* shared_memory() {
  extern __shared__ __align__(1024) unsigned char sortie_shared_memory[];
  return reinterpret_cast<T*>(sortie_shared_memory);
}
#else
template <class T>
T* shared_memory() {
  return reinterpret_cast<T*>(emulated_cuda::here.shared);
}
#endif

__device__ __forceinline__ float to_float(float value) {
  return value;
}
__device__ __forceinline__ float to_float(bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}
/// Rounds to nearest even; NaN stays NaN.
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float value) {
  bf16 result;
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#else
  const std::uint32_t wide = __float_as_uint(value);
  result.bits = static_cast<std::uint16_t>(
      (wide & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
#endif
  return result;
}

/// Converts two values at once, with half the instructions.
__device__ __forceinline__ void from_floats(float first, float second, bf16* pair) {
#if defined(__CUDA_ARCH__)
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  memcpy(pair, &bits, sizeof bits);
#else
  pair[0] = from_float<bf16>(first);
  pair[1] = from_float<bf16>(second);
#endif
}

/// 2^x, relative error 2^-22; 0 below the normal numbers.
__device__ __forceinline__ float exp2_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// e^x, with a relative error of about |x| 2^-24.
__device__ __forceinline__ float exp_fast(float x) {
  return exp2_fast(x * 1.44269504f);
}
/// 1 / x within 1 ulp; 0 if that is below the normal numbers.
__device__ __forceinline__ float reciprocal_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}
/// Clamps x to [-limit, limit]. NaN stays NaN; fminf and fmaxf would lose it.
__device__ __forceinline__ float limited(float x, float limit) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(y), "f"(-limit));
  return x;
#else
  const float low = x < -limit ? -limit : x;
  return low > limit ? limit : low;
#endif
}

/// N elements of T that are loaded or stored in one access. Addresses must be multiples of its
/// size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};
/// Number of elements of T in 16 bytes.
template <class T>
inline constexpr int kPackOf = static_cast<int>(16 / sizeof(T));

/// One access to device memory of sizeof(P) bytes: 2, 4, 8 or 16. nvcc would split a plain
/// assignment into smaller accesses.
template <class P>
__device__ __forceinline__ P read_pack(const void* from) {
#if defined(__CUDA_ARCH__)
  P pack;
  if constexpr (sizeof(P) == 16) {
    const uint4 words = *static_cast<const uint4*>(from);
    memcpy(&pack, &words, sizeof pack);
  } else if constexpr (sizeof(P) == 8) {
    const uint2 words = *static_cast<const uint2*>(from);
    memcpy(&pack, &words, sizeof pack);
  } else {
    pack = *static_cast<const P*>(from);
  }
  return pack;
#else
  return *static_cast<const P*>(from);
#endif
}
template <class P>
__device__ __forceinline__ void write_pack(void* to, const P& pack) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(P) == 16) {
    uint4 words;
    memcpy(&words, &pack, sizeof pack);
    __stwb(static_cast<uint4*>(to), words);
  } else if constexpr (sizeof(P) == 8) {
    uint2 words;
    memcpy(&words, &pack, sizeof pack);
    __stwb(static_cast<uint2*>(to), words);
  } else if constexpr (sizeof(P) == 4) {
    unsigned word;
    memcpy(&word, &pack, sizeof pack);
    __stwb(static_cast<unsigned*>(to), word);
  } else {
    *static_cast<P*>(to) = pack;
  }
#else
  *static_cast<P*>(to) = pack;
#endif
}

/// The sum over the warp's lanes, in every lane; the same order of additions for all.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(kAllLanes, value, lane);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lane));
  return value;
}

/// The sum over a block's threads, in every thread; blockDim.x is a multiple of the warp. `scratch`
/// is shared memory for one T per warp, which may be reused after the call.
template <class T>
__device__ __forceinline__ T block_sum(T value, T* scratch) {
  value = warp_sum(value);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  T sum = T(0);
  for (int warp = 0; warp < warps; ++warp) sum += scratch[warp];
  __syncthreads();
  return sum;
}

}  // namespace sortie::trainer::ops::cuda
