// Warpgroup products: wgmma, only on compute capability 9.0 (sm_90a). All 128 threads of four warps
// take part; the number of the first warp is a multiple of four. Operands come from shared memory,
// the left one also from registers; sums are in registers.
//
// Left operands in registers and sums have the layout that tensor_core.h describes for mma
// m16n8k16: warp w of the group has rows 16 w to 16 w + 15, and sums[i] columns 8 i to 8 i + 7.
//
// Products are asynchronous. Between warpgroup_begin() and warpgroup_wait(), no thread may touch
// their sums, their left operands in registers or what they read in shared memory.
#pragma once

#include "trainer/ops/cuda/tensor_core.h"

namespace sortie::trainer::ops::cuda {

inline constexpr int kWarpgroup = 128;

/// True if the compiled code has these products: code for 9.0 itself, and the emulation. Other
/// device code traps at its start: host code must not start it.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SORTIE_WARPGROUP_CODE
#endif
#if defined(__CUDA_ARCH__) && !defined(SORTIE_WARPGROUP_CODE)
inline constexpr bool kHasWarpgroups = false;
#else
inline constexpr bool kHasWarpgroups = true;
#endif

/// Rows of bf16 in shared memory, in the layout of wgmma's "128-byte swizzle": panels of 64
/// columns; in a panel a row is 128 bytes, and its piece p of 16 bytes is at p XOR row % 8. A tile
/// begins at a multiple of 1024 bytes of shared memory and has a multiple of 8 rows.
template <int kColumns>
struct PanelTile {
  static_assert(kColumns % 64 == 0);
  __host__ __device__ static constexpr int elements(int rows) { return rows * kColumns; }
  /// Position of an element in a tile of `rows` rows.
  __host__ __device__ static constexpr int at(int rows, int row, int column) {
    return column / 64 * rows * 64 + row * 64 + ((column % 64 / 8) ^ (row % 8)) * 8 + column % 8;
  }
};

/// A matrix in shared memory, as PTX encodes it ("Matrix descriptor format").
struct SharedMatrix {
  std::uint64_t bits;
};
/// `panel_bytes`: from one panel to the next, used only by transposed operands.
__device__ __forceinline__ SharedMatrix shared_matrix(const bf16* begin, int panel_bytes) {
  constexpr std::uint64_t kSwizzle128 = 1, kEightRows = 1024;
#ifdef __CUDACC__
  const std::uint64_t address = shared_address(begin);
#else
  const std::uint64_t address = emulated_cuda::shared_address(begin);
#endif
  return {(address & 0x3ffff) >> 4 | static_cast<std::uint64_t>(panel_bytes >> 4) << 16 |
          (kEightRows >> 4) << 32 | kSwizzle128 << 62};
}
/// The same matrix, starting `bytes` later.
__device__ __forceinline__ SharedMatrix behind(SharedMatrix matrix, int bytes) {
  return {matrix.bits + static_cast<std::uint64_t>(bytes >> 4)};
}

/// Makes what this thread wrote to shared memory visible to products, after a barrier.
__device__ __forceinline__ void show_to_products() {
#ifdef SORTIE_WARPGROUP_CODE
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Must precede products whose sums or register operands were accessed.
__device__ __forceinline__ void warpgroup_begin() {
#ifdef SORTIE_WARPGROUP_CODE
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/// Makes the products since the last call a group.
__device__ __forceinline__ void warpgroup_commit() {
#ifdef SORTIE_WARPGROUP_CODE
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits until at most the N newest groups are incomplete. Call touch_sums() on the sums of the
/// others before using them.
template <int N>
__device__ __forceinline__ void warpgroup_wait() {
#ifdef SORTIE_WARPGROUP_CODE
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
/// Prevents the compiler from moving uses of the sums to before this call.
template <int N>
__device__ __forceinline__ void touch_sums([[maybe_unused]] float (&sums)[N][4]) {
#ifdef SORTIE_WARPGROUP_CODE
#pragma unroll
  for (int i = 0; i < N; ++i)
    asm volatile(""
                 : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]),
                   "+f"(sums[i][3])::"memory");
#endif
}

#ifdef SORTIE_WARPGROUP_CODE
#define SORTIE_FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
/// c = a b^T, or c += a b^T with kAdd: 64 rows of `a`, 64 or 128 of `b`, 16 columns of both.
template <bool kAdd>
__device__ __forceinline__ void wgmma_rows(float (&c)[8][4], SharedMatrix a, SharedMatrix b) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, p, 1, 1, 0, 0;}"
      : SORTIE_FOUR(c, 0), SORTIE_FOUR(c, 1), SORTIE_FOUR(c, 2), SORTIE_FOUR(c, 3),
        SORTIE_FOUR(c, 4), SORTIE_FOUR(c, 5), SORTIE_FOUR(c, 6), SORTIE_FOUR(c, 7)
      : "l"(a.bits), "l"(b.bits), "n"(kAdd ? 1 : 0));
}
template <bool kAdd>
__device__ __forceinline__ void wgmma_rows(float (&c)[16][4], SharedMatrix a, SharedMatrix b) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"
      "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, %64, %65, p, 1, 1, 0, 0;}"
      : SORTIE_FOUR(c, 0), SORTIE_FOUR(c, 1), SORTIE_FOUR(c, 2), SORTIE_FOUR(c, 3),
        SORTIE_FOUR(c, 4), SORTIE_FOUR(c, 5), SORTIE_FOUR(c, 6), SORTIE_FOUR(c, 7),
        SORTIE_FOUR(c, 8), SORTIE_FOUR(c, 9), SORTIE_FOUR(c, 10), SORTIE_FOUR(c, 11),
        SORTIE_FOUR(c, 12), SORTIE_FOUR(c, 13), SORTIE_FOUR(c, 14), SORTIE_FOUR(c, 15)
      : "l"(a.bits), "l"(b.bits), "n"(kAdd ? 1 : 0));
}
/// c = a b, or c += a b if `adds`, with `a` in registers: 16 rows and 64 or 128 columns of `b`.
__device__ __forceinline__ void wgmma_fragment(float (&c)[8][4], const std::uint32_t (&a)[4],
                                               SharedMatrix b, bool adds) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;}"
      : SORTIE_FOUR(c, 0), SORTIE_FOUR(c, 1), SORTIE_FOUR(c, 2), SORTIE_FOUR(c, 3),
        SORTIE_FOUR(c, 4), SORTIE_FOUR(c, 5), SORTIE_FOUR(c, 6), SORTIE_FOUR(c, 7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(adds ? 1 : 0));
}
__device__ __forceinline__ void wgmma_fragment(float (&c)[16][4], const std::uint32_t (&a)[4],
                                               SharedMatrix b, bool adds) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"
      "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;}"
      : SORTIE_FOUR(c, 0), SORTIE_FOUR(c, 1), SORTIE_FOUR(c, 2), SORTIE_FOUR(c, 3),
        SORTIE_FOUR(c, 4), SORTIE_FOUR(c, 5), SORTIE_FOUR(c, 6), SORTIE_FOUR(c, 7),
        SORTIE_FOUR(c, 8), SORTIE_FOUR(c, 9), SORTIE_FOUR(c, 10), SORTIE_FOUR(c, 11),
        SORTIE_FOUR(c, 12), SORTIE_FOUR(c, 13), SORTIE_FOUR(c, 14), SORTIE_FOUR(c, 15)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(adds ? 1 : 0));
}
#undef SORTIE_FOUR
#elif defined(__CUDACC__)
template <bool kAdd, int N>
__device__ __forceinline__ void wgmma_rows(float (&)[N][4], SharedMatrix, SharedMatrix) {}
template <int N>
__device__ __forceinline__ void wgmma_fragment(float (&)[N][4], const std::uint32_t (&)[4],
                                               SharedMatrix, bool) {}
#else
template <bool kAdd, int N>
void wgmma_rows(float (&c)[N][4], SharedMatrix a, SharedMatrix b) {
  emulated_cuda::wgmma(c, N, kAdd, nullptr, a.bits, b.bits, false);
}
template <int N>
void wgmma_fragment(float (&c)[N][4], const std::uint32_t (&a)[4], SharedMatrix b, bool adds) {
  emulated_cuda::wgmma(c, N, adds, &a, 0, b.bits, true);
}
#endif

/// Starts s = a b^T: the 64 rows of `a` from `row` on times all kRows rows of `b`, over kColumns.
/// `a` is a tile of kRowsOfA rows. s is valid after warpgroup_wait().
template <int kRowsOfA, int kRows, int kColumns>
__device__ __forceinline__ void begin_rows(float (&s)[kRows / 8][4], const bf16* a, int row,
                                           const bf16* b) {
  constexpr int kPanelA = kRowsOfA * 128, kPanelB = kRows * 128, kUnused = 16;
  const SharedMatrix left = shared_matrix(a + row * 64, kUnused), right = shared_matrix(b, kUnused);
#pragma unroll
  for (int k = 0; k < kColumns; k += 16) {
    const int column = k % 64 * 2;
    const SharedMatrix x = behind(left, k / 64 * kPanelA + column),
                       y = behind(right, k / 64 * kPanelB + column);
    if (k == 0)
      wgmma_rows<false>(s, x, y);
    else
      wgmma_rows<true>(s, x, y);
  }
}
/// Starts c = p b, or c += p b if `adds`: p are fragments of 64 rows, whose columns are the kRows
/// rows of `b`. c is valid after warpgroup_wait().
template <int kRows, int kColumns>
__device__ __forceinline__ void begin_fragments(float (&c)[kColumns / 8][4],
                                                const std::uint32_t (&p)[kRows / 16][4],
                                                const bf16* b, bool adds) {
  const SharedMatrix right = shared_matrix(b, kRows * 128);
#pragma unroll
  for (int k = 0; k < kRows; k += 16)
    wgmma_fragment(c, p[k / 16], behind(right, k * 128), adds || k > 0);
}

/// Converts sums in registers to the fragments of a left operand, rounded to bf16.
template <int N>
__device__ __forceinline__ void to_fragments(std::uint32_t (&p)[N / 2][4], const float (&s)[N][4]) {
#pragma unroll
  for (int k = 0; k < N / 2; ++k) {
    p[k][0] = pack_bf16(s[2 * k][0], s[2 * k][1]);
    p[k][1] = pack_bf16(s[2 * k][2], s[2 * k][3]);
    p[k][2] = pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]);
    p[k][3] = pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3]);
  }
}

}  // namespace sortie::trainer::ops::cuda
