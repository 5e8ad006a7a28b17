// Kernels on rows of attention: the delta of each row for the backward pass, and the combination of
// results over ranges of keys.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = kThreads / kWarp;

/// Sample, token and head of a row.
struct RowPlace {
  std::int64_t sample;
  int token, head;
  bool there;
};
/// A warp per row; heads vary fastest, as in memory.
__device__ __forceinline__ RowPlace row_of_warp(const AttentionSizes& sizes) {
  const std::int64_t row =
      std::int64_t{blockIdx.x} * kRowsPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t token = row / sizes.heads;
  return {token / sizes.queries, static_cast<int>(token % sizes.queries),
          static_cast<int>(row % sizes.heads), token < sizes.batch * sizes.queries};
}

/// The row of a thread, with `lanes` threads per row. There may be more than 2^32 threads.
__host__ __device__ constexpr unsigned row_of_thread(unsigned block, unsigned thread, int lanes) {
  return static_cast<unsigned>((std::uint64_t{block} * kThreads + thread) /
                               static_cast<unsigned>(lanes));
}
static_assert(row_of_thread(1u << 25, 8, 8) == (1u << 29) + 1);

/// kLanes threads per row, so that a warp has whole rows; heads vary fastest.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(AttentionSizes sizes, unsigned rows, Heads<const T> out, Heads<const T> dout,
                 float* delta) {
  const unsigned row = row_of_thread(blockIdx.x, threadIdx.x, kLanes);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto heads = static_cast<unsigned>(sizes.heads),
             queries = static_cast<unsigned>(sizes.queries);
  const unsigned token = row / heads, head = row % heads;
  const std::int64_t sample = token / queries, query = token % queries;
  float sum = 0.0f;
  if (row < rows) {
    const T* a = out.data + sample * out.sample + query * out.token + head * out.head;
    const T* b = dout.data + sample * dout.sample + query * dout.token + head * dout.head;
    if (out.in_pieces && dout.in_pieces) {
      constexpr int kPack = kPackOf<T>;
      for (int i = lane * kPack; i < sizes.value_dims; i += kLanes * kPack) {
        const auto x = read_pack<Pack<T, kPack>>(a + i);
        const auto y = read_pack<Pack<T, kPack>>(b + i);
#pragma unroll
        for (int j = 0; j < kPack; ++j) sum += to_float(x.values[j]) * to_float(y.values[j]);
      }
    } else {
      for (int i = lane; i < sizes.value_dims; i += kLanes) sum += to_float(a[i]) * to_float(b[i]);
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (row < rows && lane == 0) delta[(sample * heads + head) * queries + query] = sum;
}

/// parts [splits, B, T, H, Dv], lse [splits, B, H, T].
template <class T>
__global__ void join_kernel(AttentionSizes sizes, const float* parts, const float* lse, int splits,
                            Heads<T> out) {
  const RowPlace at = row_of_warp(sizes);
  if (!at.there) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t rows = sizes.batch * sizes.queries * sizes.heads;
  const float* of_row = lse + (at.sample * sizes.heads + at.head) * sizes.queries + at.token;
  constexpr float kNothing = -__builtin_huge_valf();
  float most = kNothing;
  for (int s = 0; s < splits; ++s) most = fmaxf(most, of_row[s * rows]);
  const float base = most == kNothing ? 0.0f : most;
  float total = 0.0f;
  for (int s = 0; s < splits; ++s) total += expf(of_row[s * rows] - base);
  const float* from =
      parts + ((at.sample * sizes.queries + at.token) * sizes.heads + at.head) * sizes.value_dims;
  T* to = out.data + at.sample * out.sample + at.token * out.token + at.head * out.head;
  for (int i = lane; i < sizes.value_dims; i += kWarp) {
    float sum = 0.0f;
    for (int s = 0; s < splits; ++s)
      sum += expf(of_row[s * rows] - base) * from[s * rows * sizes.value_dims + i];
    to[i] = from_float<T>(sum / total);
  }
}

/// parts [splits, B * keys * KV rows, columns]; the row of key head h of key t of sample b is
/// (b keys + t) KV + h. A block per row.
template <class T>
__global__ void join_gradient_kernel(AttentionSizes sizes, const float* parts, int splits,
                                     int columns, bool add, Heads<T> to) {
  const std::int64_t row = blockIdx.x, rows = gridDim.x;
  const std::int64_t token = row / sizes.key_heads;
  T* gradient = to.data + token / sizes.keys * to.sample + token % sizes.keys * to.token +
                row % sizes.key_heads * to.head;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads) {
    float sum = add ? to_float(gradient[i]) : 0.0f;
    for (int s = 0; s < splits; ++s) sum += parts[(s * rows + row) * columns + i];
    gradient[i] = from_float<T>(sum);
  }
}

unsigned blocks_of_rows(const AttentionSizes& sizes) {
  return blocks_for(sizes.batch * sizes.queries * sizes.heads, kRowsPerBlock);
}

}  // namespace

template <class T>
void attention_delta(cudaStream_t stream, const AttentionSizes& sizes, Heads<const T> out,
                     Heads<const T> dout, float* delta) {
  const std::int64_t rows = sizes.batch * sizes.queries * sizes.heads;
  const auto run = [&]<int kLanes> {
    launch(delta_kernel<T, kLanes>,
           {.blocks = blocks_for(rows, kThreads / kLanes), .threads = kThreads}, stream, sizes,
           static_cast<unsigned>(rows), out, dout, delta);
  };
  const int pieces = sizes.value_dims / kPackOf<T>;
  if (pieces <= 8)
    run.template operator()<8>();
  else if (pieces <= 16)
    run.template operator()<16>();
  else
    run.template operator()<kWarp>();
}
template void attention_delta(cudaStream_t, const AttentionSizes&, Heads<const float>,
                              Heads<const float>, float*);
template void attention_delta(cudaStream_t, const AttentionSizes&, Heads<const bf16>,
                              Heads<const bf16>, float*);

template <class T>
void join_attention_parts(cudaStream_t stream, const AttentionSizes& sizes, const float* parts,
                          const float* lse, int splits, Heads<T> out) {
  launch(join_kernel<T>, {.blocks = blocks_of_rows(sizes), .threads = kThreads}, stream, sizes,
         parts, lse, splits, out);
}
template void join_attention_parts(cudaStream_t, const AttentionSizes&, const float*, const float*,
                                   int, Heads<float>);
template void join_attention_parts(cudaStream_t, const AttentionSizes&, const float*, const float*,
                                   int, Heads<bf16>);

template <class T>
void join_key_gradient(cudaStream_t stream, const AttentionSizes& sizes, const float* parts,
                       int splits, int columns, bool add, Heads<T> gradient) {
  const std::int64_t rows = sizes.batch * sizes.keys * sizes.key_heads;
  launch(join_gradient_kernel<T>, {.blocks = static_cast<unsigned>(rows), .threads = kThreads},
         stream, sizes, parts, splits, columns, add, gradient);
}
template void join_key_gradient(cudaStream_t, const AttentionSizes&, const float*, int, int, bool,
                                Heads<float>);
template void join_key_gradient(cudaStream_t, const AttentionSizes&, const float*, int, int, bool,
                                Heads<bf16>);

}  // namespace sortie::trainer::ops::cuda
