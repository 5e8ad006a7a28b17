// Emulates tensor cores and asynchronous copies for trainer/ops/cuda/tensor_core.h: the effect of
// the instructions on fragments, which are in the registers of fibers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulated_cuda {

void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
/// Multiplies 8-bit elements with 3 (e4m3) or 2 (e5m2) mantissa bits.
void mma_fp8(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
             int a_mantissa, int b_mantissa);
void ldmatrix_x4(std::uint32_t (&registers)[4], const void* row, bool transposed);

/// The address of shared memory as instructions use it: an offset from a fixed base.
std::uint32_t shared_address(const void* shared);
/// One warp's part of wgmma m64nNk16 (N = 8 * columns_of_8), done immediately. `a` is its fragment;
/// if it is nullptr, a_matrix is the descriptor of all 64 rows.
void wgmma(float (*c)[4], int columns_of_8, bool adds, const std::uint32_t (*a)[4],
           std::uint64_t a_matrix, std::uint64_t b_matrix, bool b_transposed);

/// A copy to shared memory that takes effect only when the thread waits for its group.
void copy_async(void* shared, const void* global, std::size_t size, bool valid);
void commit_copies();
void wait_copies(std::size_t groups_left);

}  // namespace emulated_cuda
