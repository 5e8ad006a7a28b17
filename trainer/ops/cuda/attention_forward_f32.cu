// Attention's forward pass in f32 by FMA: a block takes 32 queries and iterates over the keys, 32
// at a time. Keys and values share one buffer.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/attention_forward.h"
#include "trainer/ops/cuda/attention_tiles_f32.h"
#include "trainer/ops/cuda/dropout_run.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// How grid.x is divided: splits (fastest), heads, samples, tiles.
struct PlanF32 {
  int tiles, heads, pack;
};

template <int kD>
constexpr std::size_t shared_bytes() {
  return (2 * TileF32<kD>::kElements + kScoresElements) * sizeof(float);
}

template <int kD, bool kReads>
__global__ void __launch_bounds__(kF32Threads)
    forward_f32_kernel(AttentionInputs<float> in, AttentionOut<float> to, PlanF32 plan) {
  auto* queries = shared_memory<float>();
  float* others = queries + TileF32<kD>::kElements;
  float* scores = others + TileF32<kD>::kElements;
  auto* scratch = shared_memory<SeenByAll>();  // used before rows are loaded
  if (kReads && in.mask.place != nullptr) in.mask.first_query = *in.mask.place;

  unsigned rest = blockIdx.x;
  const auto next = [&](int count) {
    const unsigned index = rest % static_cast<unsigned>(count);
    rest /= static_cast<unsigned>(count);
    return static_cast<int>(index);
  };
  const int split = next(to.splits), head = next(plan.heads);
  const std::int64_t b = next(static_cast<int>(in.sizes.batch));
  const int first_row = (plan.tiles - 1 - static_cast<int>(rest)) * kF32Rows;
  const int rows = in.sizes.queries * plan.pack;
  const int key_head = plan.pack > 1 ? head : head / (in.sizes.heads / in.sizes.key_heads);
  const auto token_of = [&](int row) { return row / plan.pack; };
  const auto head_of = [&](int row) { return head * plan.pack + row % plan.pack; };
  const int x = static_cast<int>(threadIdx.x) % kF32Side,
            y = static_cast<int>(threadIdx.x) / kF32Side;

  KeySpan spans[2];
  SeenByAll mine;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + 2 * y + i;
    spans[i] = {0, 0};
    if (row >= rows) continue;
    const int token = token_of(row);
    spans[i] = seen_keys(in.mask, in.sizes.keys, token, document_start(in.mask, b, token));
    mine.add(spans[i]);
  }
  const SeenByAll seen = over_block(over_warp(mine), scratch);
  int begin = seen.first / kF32Rows, end = (seen.end + kF32Rows - 1) / kF32Rows;
  if (seen.end == 0) begin = end = 0;
  if (to.splits > 1) {
    const int share = (end - begin + to.splits - 1) / to.splits;
    begin += split * share;
    end = min(end, begin + share);
  }

  const float* q = in.q.data + b * in.q.sample;
  if (begin < end)
    load_tile_f32<kD>(queries, in.sizes.dims, in.q.in_pieces, q, [&](int r) {
      const int row = first_row + r;
      return row < rows ? q + token_of(row) * in.q.token + head_of(row) * in.q.head : nullptr;
    });
  const auto load_others = [&](const Heads<const float>& from, int columns, int first) {
    const float* head_rows = from.data + b * from.sample + key_head * from.head;
    load_tile_f32<kD>(others, columns, from.in_pieces, head_rows, [&](int row) {
      const int key = first + row;
      return key < in.sizes.keys ? head_rows + key * from.token : nullptr;
    });
  };

  float sums[2][kD / kF32Side] = {}, top[2] = {-kInfinity, -kInfinity}, total[2] = {};
  const float scale = in.mask.scale * kLog2E;
  for (int n = begin; n < end; ++n) {
    const int first_key = n * kF32Rows;
    load_others(in.k, in.sizes.dims, first_key);
    float s[2][2];
    multiply_rows<kD>(s, queries, others);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float most = -kInfinity;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (!spans[i].has(first_key + x + kF32Side * j)) s[i][j] = -kInfinity;
        most = fmaxf(most, s[i][j]);
      }
      for (int lane = kF32Side / 2; lane > 0; lane /= 2)
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, lane));
      most = fmaxf(most, top[i]);
      const float base = most == -kInfinity ? 0.0f : most;
      const float keep = exp2f((top[i] - base) * scale);
      top[i] = most;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        s[i][j] = exp2f((s[i][j] - base) * scale);
        sum += s[i][j];
      }
      total[i] = total[i] * keep + sum;
#pragma unroll
      for (int c = 0; c < kD / kF32Side; ++c) sums[i][c] *= keep;
      if (in.mask.dropout.threshold != 0) {
        DropoutRun dropout(in.mask.dropout, b, kReads);
        const std::int64_t element =
            (head * in.mask.tokens + in.mask.first_query + first_row + 2 * y + i) * in.mask.tokens +
            in.mask.first_key + first_key + x;
#pragma unroll
        for (int j = 0; j < 2; ++j) s[i][j] = dropout(element + kF32Side * j, s[i][j]);
      }
    }
    share_scores(scores, s);
    __syncthreads();  // no thread still reads the keys
    load_others(in.v, in.sizes.value_dims, first_key);
    add_product<kD>(sums, scores, others);
    __syncthreads();
  }

  FinishedRow<float> finished[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = total[i];
    for (int lane = kF32Side / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lane);
    const int row = first_row + 2 * y + i;
    if (row < rows)
      finished[i] =
          finish_row(to, split, b, head_of(row), token_of(row), sum, top[i] * in.mask.scale);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (x == 0) finished[i].store_lse();
#pragma unroll
    for (int n = 0; n < kD / kF32Side; n += 2)
      finished[i].store(2 * x + kF32Side * n, in.sizes.value_dims, sums[i][n], sums[i][n + 1]);
  }
}

}  // namespace

template <>
void attention_forward_tiles(cudaStream_t stream, const AttentionInputs<float>& in,
                             const AttentionOut<float>& out) {
  with_head_size_f32(in.sizes.dims, in.sizes.value_dims, [&]<int kD>() {
    PlanF32 plan;
    plan.pack = out.pack_heads ? in.sizes.heads / in.sizes.key_heads : 1;
    plan.heads = in.sizes.heads / plan.pack;
    plan.tiles = static_cast<int>(blocks_for(std::int64_t{in.sizes.queries} * plan.pack, kF32Rows));
    const std::int64_t blocks = std::int64_t{plan.tiles} * plan.heads * in.sizes.batch * out.splits;
    launch(reads_values(in.mask) ? forward_f32_kernel<kD, true> : forward_f32_kernel<kD, false>,
           {.blocks = static_cast<unsigned>(blocks),
            .threads = kF32Threads,
            .shared_bytes = shared_bytes<kD>()},
           stream, in, out, plan);
  });
}

}  // namespace sortie::trainer::ops::cuda
