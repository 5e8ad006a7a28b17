// Tensor cores and asynchronous copies, for kernels of matrix products in addition to device.h. All
// 32 lanes of a warp take part in mma and ldmatrix. Require sm_80; fp8 requires sm_89.
//
// Fragments (PTX ISA, "Matrix Fragments for mma"), with g = lane / 4 and t = lane % 4:
//   bf16 m16n8k16, two elements per register, the lower column in the lower half:
//     a[0] row g, columns 2t, 2t + 1     a[1] row g + 8, the same columns
//     a[2] row g, columns 2t + 8, + 9    a[3] row g + 8, the same columns
//     b[0] rows 2t, 2t + 1, column g     b[1] rows 2t + 8, 2t + 9, column g
//   fp8 m16n8k32, four elements per register: the same with columns (of b: rows) 4t ... 4t + 3, and
//     16 instead of 8 to the second half.
//   c[0], c[1] row g, columns 2t, 2t + 1; c[2], c[3] row g + 8, the same columns.
#pragma once

#include "trainer/ops/cuda/device.h"
#ifndef __CUDACC__
#include "tests/support/cuda/tensor_core.h"
#endif

namespace sortie::trainer::ops::cuda {

/// c += a b of bf16, summed in f32.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulated_cuda::mma_bf16(c, a, b);
#endif
}

/// The 8-bit formats: 4 bits of exponent and 3 of mantissa, or 5 and 2.
enum class Fp8 { e4m3, e5m2 };

/// c += a b of fp8, summed in f32. Traps on earlier architectures: host code must not start such
/// kernels there.
template <Fp8 A, Fp8 B>
__device__ __forceinline__ void mma_fp8(float (&c)[4], const std::uint32_t (&a)[4],
                                        const std::uint32_t (&b)[2]) {
#ifndef __CUDACC__
  emulated_cuda::mma_fp8(c, a, b, A == Fp8::e4m3 ? 3 : 2, B == Fp8::e4m3 ? 3 : 2);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define SORTIE_MMA_FP8(a_format, b_format)                                    \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." a_format "." b_format \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"   \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (A == Fp8::e4m3 && B == Fp8::e4m3)
    SORTIE_MMA_FP8("e4m3", "e4m3");
  else if constexpr (A == Fp8::e4m3)
    SORTIE_MMA_FP8("e4m3", "e5m2");
  else if constexpr (B == Fp8::e4m3)
    SORTIE_MMA_FP8("e5m2", "e4m3");
  else
    SORTIE_MMA_FP8("e5m2", "e5m2");
#undef SORTIE_MMA_FP8
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}

#ifdef __CUDACC__
/// The address in the form that instructions on shared memory take.
__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane i gives the address of row
/// i % 8 of matrix i / 8: 16 bytes, 16-byte aligned. registers[m] receives the columns 2t and
/// 2t + 1 of row g of matrix m.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&registers)[4], const void* row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
#else
  emulated_cuda::ldmatrix_x4(registers, row, false);
#endif
}
/// The same, transposed: registers[m] receives rows 2t and 2t + 1 of column g of matrix m.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&registers)[4], const void* row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
#else
  emulated_cuda::ldmatrix_x4(registers, row, true);
#endif
}

/// Starts a copy of 16 bytes from global to shared memory, both 16-byte aligned. Without `valid` it
/// writes zeros and reads nothing. The copy is visible to this thread after a cp_async_wait that
/// covers it, and to the block's other threads after a barrier that follows.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid = true) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
#else
  emulated_cuda::copy_async(shared, global, 16, valid);
#endif
}
/// The same for 4 bytes.
__device__ __forceinline__ void cp_async_4(void* shared, const void* global, bool valid = true) {
#ifdef __CUDACC__
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 4 : 0)
               : "memory");
#else
  emulated_cuda::copy_async(shared, global, 4, valid);
#endif
}
/// Makes this thread's copies since its last call a group, which may be empty.
__device__ __forceinline__ void cp_async_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulated_cuda::commit_copies();
#endif
}
/// Waits until at most the N newest groups of this thread are incomplete.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#else
  emulated_cuda::wait_copies(N);
#endif
}

/// Two values as bf16 in one register, `low` in the lower half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
#ifdef __CUDACC__
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return static_cast<std::uint32_t>(from_float<bf16>(low).bits) |
         static_cast<std::uint32_t>(from_float<bf16>(high).bits) << 16;
#endif
}

}  // namespace sortie::trainer::ops::cuda
