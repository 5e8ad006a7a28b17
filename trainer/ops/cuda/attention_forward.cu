// Attention's forward pass in bf16 on tensor cores (Dao 2023): a block takes a tile of queries and
// iterates over the keys. A warp has 16 or 32 rows, whose scores, probabilities and sums stay in
// its registers. The values are loaded while scores are computed, and the next keys while values
// are summed.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/attention_forward.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

/// Rows per warp in units of 16, and keys per tile, as registers and 99 KiB of shared memory allow.
template <int kD, int kDv>
struct ForwardShape {
  static constexpr int kM = kD <= 128 ? 2 : 1;
  static constexpr int kRows = kWarps * 16 * kM;
  static constexpr int kKeys = kD <= 64 ? 64 : kD <= 128 ? 48 : kD <= 192 ? 64 : 32;
  static constexpr std::size_t shared_bytes() {
    return static_cast<std::size_t>(Tile<kD>::elements(kRows + kKeys) +
                                    Tile<kDv>::elements(kKeys)) *
           sizeof(bf16);
  }
};

template <int kD, int kDv, bool kReads>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(AttentionInputs<bf16> in, AttentionOut<bf16> to, BlockPlan plan,
                   int pack) {
  using Shape = ForwardShape<kD, kDv>;
  constexpr int kM = Shape::kM, kRows = Shape::kRows, kKeys = Shape::kKeys;
  constexpr int kN = kKeys / 8, kNv = kDv / 8;
  auto* queries = shared_memory<bf16>();
  bf16* keys = queries + Tile<kD>::elements(kRows);
  bf16* values = keys + Tile<kD>::elements(kKeys);
  auto* scratch = shared_memory<SeenByAll>();  // used before rows are loaded
  if (kReads && in.mask.place != nullptr) in.mask.first_query = *in.mask.place;

  const BlockPlace place = place_of_block<true>(plan);
  const int split = place.split, head = place.head, tile = plan.tiles - 1 - place.tile;
  const std::int64_t b = place.sample;

  const int first_row = tile * kRows, rows = in.sizes.queries * pack;
  const int key_head = pack > 1 ? head : head / plan.group;
  // Row r is query r / pack of packed head r % pack.
  const auto token_of = [&](int row) { return pack > 1 ? row / pack : row; };
  const auto head_of = [&](int row) {
    return pack > 1 ? head * pack + row % pack : head;
  };
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  const int warp_row = warp * 16 * kM;

  const auto span_of = [&](int row) {
    if (row >= rows) return KeySpan{0, 0};
    const int token = token_of(row);
    return seen_keys(in.mask, in.sizes.keys, token, document_start(in.mask, b, token));
  };
  SeenByAll of_warp;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + warp_row + 16 * m + 8 * half + g;
      if (row < rows) of_warp.add(span_of(row));
    }
  of_warp = over_warp(of_warp);
  const SeenByAll of_block = over_block(of_warp, scratch);
  // Tiles of keys, of this split.
  int begin = of_block.first / kKeys, end = (of_block.end + kKeys - 1) / kKeys;
  if (of_block.end == 0) begin = end = 0;
  if (to.splits > 1) {
    const int share = (end - begin + to.splits - 1) / to.splits;
    begin += split * share;
    end = min(end, begin + share);
  }

  const bf16* k = in.k.data + b * in.k.sample + key_head * in.k.head;
  const bf16* v = in.v.data + b * in.v.sample + key_head * in.v.head;
  const auto load_keys = [&](int n) {
    load_tile<kKeys, kD, kThreads>(keys, in.sizes.dims, in.k.in_pieces, k, [&](int row) {
      const int key = n * kKeys + row;
      return key < in.sizes.keys ? k + key * in.k.token : nullptr;
    });
    cp_async_commit();
  };
  const auto load_values = [&](int n) {
    load_tile<kKeys, kDv, kThreads>(values, in.sizes.value_dims, in.v.in_pieces, v, [&](int row) {
      const int key = n * kKeys + row;
      return key < in.sizes.keys ? v + key * in.v.token : nullptr;
    });
    cp_async_commit();
  };
  if (begin < end) {
    const bf16* q = in.q.data + b * in.q.sample;
    load_tile<kRows, kD, kThreads>(queries, in.sizes.dims, in.q.in_pieces, q, [&](int r) {
      const int row = first_row + r;
      return row < rows ? q + token_of(row) * in.q.token + head_of(row) * in.q.head : nullptr;
    });
    load_keys(begin);
  }

  float sums[kM][kNv][4];
  RunningSoftmax softmax[kM][2];
  clear(sums);
  const float scale = in.mask.scale * kLog2E;

  for (int n = begin; n < end; ++n) {
    const int first_key = n * kKeys;
    const bool works = of_warp.any(first_key, first_key + kKeys);
    cp_async_wait<0>();
    __syncthreads();  // the keys are loaded, and no thread still reads the previous values
    load_values(n);
    float s[kM][kN][4];
    clear(s);
    if (works) multiply_transposed<kM, kKeys, kD>(s, queries, warp_row, keys);
    cp_async_wait<0>();
    __syncthreads();  // the values are loaded, and no thread still reads these keys
    if (n + 1 < end) load_keys(n + 1);
    if (!works) continue;
    const bool masked = !of_warp.all(first_key, first_key + kKeys);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + warp_row + 16 * m + 8 * half + g;
        // Rarely needed, and recomputed because registers are scarce.
        KeySpan span{0, 0};
        if (masked) span = span_of(row);
        const float keep = softmax[m][half].add(s[m], half, first_key, masked, span, scale);
        // In most tiles no score is larger than those before.
        if (__ballot_sync(kAllLanes, keep != 1.0f) != 0) multiply_row(sums[m], half, keep);
        if (in.mask.dropout.threshold != 0)
          drop_probabilities<kReads>(s[m], half, in.mask, b, head, row, first_key);
      }
    multiply_registers<kM, kKeys, kDv>(sums, s, values);
  }

  FinishedRow<bf16> finished[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = softmax[m][half].whole_total();
      const int row = first_row + warp_row + 16 * m + 8 * half + g;
      if (row < rows)
        finished[m][half] = finish_row(to, split, b, head_of(row), token_of(row), sum,
                                       softmax[m][half].top * in.mask.scale);
    }
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (t == 0) finished[m][half].store_lse();
#pragma unroll
      for (int i = 0; i < kNv; ++i)
        finished[m][half].store(8 * i + 2 * t, in.sizes.value_dims, sums[m][i][2 * half],
                                sums[m][i][2 * half + 1]);
    }
}

}  // namespace

template <>
void attention_forward_tiles(cudaStream_t stream, const AttentionInputs<bf16>& in,
                             const AttentionOut<bf16>& out) {
  with_head_sizes(in.sizes.dims, in.sizes.value_dims, [&]<int kD, int kDv>() {
    using Shape = ForwardShape<kD, kDv>;
    const int pack = out.pack_heads ? in.sizes.heads / in.sizes.key_heads : 1;
    const BlockPlan plan = forward_plan(in.sizes, Shape::kRows, pack, out.splits);
    launch(reads_values(in.mask) ? forward_kernel<kD, kDv, true> : forward_kernel<kD, kDv, false>,
           {.blocks = blocks_of(plan),
            .threads = kThreads,
            .shared_bytes = Shape::shared_bytes()},
           stream, in, out, plan, pack);
  });
}

}  // namespace sortie::trainer::ops::cuda
