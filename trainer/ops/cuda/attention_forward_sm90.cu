// Attention's forward pass in bf16 by products of warpgroups (Shah et al. 2024): as
// attention_forward.cu, with 64 rows per warpgroup, whose products read keys and values from shared
// memory themselves. Scores over the next keys are computed while values of these are summed up.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/attention_forward.h"
#include "trainer/ops/cuda/attention_sm90.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// How work is cut: measured on an H200.
template <int kD>
struct ForwardShape {
  static constexpr int kGroups = kD == 64 ? 2 : 3;  // warpgroups of a block, with 64 queries each
  static constexpr int kBlocks = kD == 64 ? 2 : 1;  // of a multiprocessor
  static constexpr int kThreads = kGroups * kWarpgroup, kRows = kGroups * 64;
};
constexpr int kKeys = 64;
constexpr int kStages = 2;

template <int kD>
constexpr std::size_t shared_bytes() {
  return static_cast<std::size_t>(
             PanelTile<kD>::elements(ForwardShape<kD>::kRows + 2 * kStages * kKeys)) *
         sizeof(bf16);
}

/// `kDrops`: with dropout, whose numbers take registers.
template <int kD, bool kDrops>
__global__ void __launch_bounds__(ForwardShape<kD>::kThreads, ForwardShape<kD>::kBlocks)
    forward_sm90_kernel(AttentionInputs<bf16> in, AttentionOut<bf16> to, ForwardPlan plan) {
  if (!kHasWarpgroups) __trap();
  constexpr int kThreads = ForwardShape<kD>::kThreads, kRows = ForwardShape<kD>::kRows;
  auto* queries = shared_memory<bf16>();
  bf16* keys = queries + PanelTile<kD>::elements(kRows);
  bf16* values = keys + PanelTile<kD>::elements(kStages * kKeys);
  auto* scratch = shared_memory<SeenByAll>();  // before rows come

  unsigned rest = blockIdx.x;
  const auto head = static_cast<int>(rest % static_cast<unsigned>(plan.heads));
  rest /= static_cast<unsigned>(plan.heads);
  const auto b = static_cast<std::int64_t>(rest % static_cast<unsigned>(in.sizes.batch));
  const int tile = plan.tiles - 1 - static_cast<int>(rest / static_cast<unsigned>(in.sizes.batch));
  const int first_row = tile * kRows;
  const int key_head = head / (in.sizes.heads / in.sizes.key_heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  const int group_row = warp / 4 * 64, own_row = first_row + warp * 16 + g;

  const auto span_of = [&](int row) {
    if (row >= in.sizes.queries) return KeySpan{0, 0};
    return seen_keys(in.mask, in.sizes.keys, row, document_start(in.mask, b, row));
  };
  SeenByAll of_warp;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (own_row + 8 * half < in.sizes.queries) of_warp.add(span_of(own_row + 8 * half));
  of_warp = over_warp(of_warp);
  const SeenByAll of_block = over_block(of_warp, scratch);
  const int begin = of_block.end == 0 ? 0 : of_block.first / kKeys,
            end = of_block.end == 0 ? 0 : (of_block.end + kKeys - 1) / kKeys;

  const bf16* k = in.k.data + b * in.k.sample + key_head * in.k.head;
  const bf16* v = in.v.data + b * in.v.sample + key_head * in.v.head;
  const auto stage_of = [](bf16* tiles, int n) {
    return tiles + n % kStages * PanelTile<kD>::elements(kKeys);
  };
  const auto load_keys = [&](int n) {
    if (n < end)
      load_panels<kKeys, kD, kThreads>(stage_of(keys, n), k, in.k.token, n * kKeys, in.sizes.keys,
                                       in.sizes.dims);
  };
  const auto load_values = [&](int n) {
    if (n < end)
      load_panels<kKeys, kD, kThreads>(stage_of(values, n), v, in.v.token, n * kKeys, in.sizes.keys,
                                       in.sizes.value_dims);
  };

  float sums[kD / 8][4] = {}, s[kKeys / 8][4];
  std::uint32_t p[kKeys / 16][4];
  RunningSoftmax softmax[2];
  const float scale = in.mask.scale * kLog2E;
  float keep[2];
  const auto to_probabilities = [&](int n) {
    const int first_key = n * kKeys;
    const bool masked = !of_warp.all(first_key, first_key + kKeys);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Seldom wanted, and computed again: registers are few.
      KeySpan span{0, 0};
      if (masked) span = span_of(own_row + 8 * half);
      keep[half] = softmax[half].add(s, half, first_key, masked, span, scale);
      if constexpr (kDrops)
        drop_probabilities<true>(s, half, in.mask, b, head, own_row + 8 * half, first_key);
    }
  };

  if (begin < end) {
    const bf16* q = in.q.data + b * in.q.sample + head * in.q.head;
    load_panels<kRows, kD, kThreads>(queries, q, in.q.token, first_row, in.sizes.queries,
                                     in.sizes.dims);
    load_keys(begin);
    cp_async_commit();
    load_values(begin);
    load_keys(begin + 1);
    cp_async_commit();
    cp_async_wait<1>();
    show_to_products();
    __syncthreads();
    warpgroup_begin();
    begin_rows<kRows, kKeys, kD>(s, queries, group_row, stage_of(keys, begin));
    warpgroup_commit();
    warpgroup_wait<0>();
    touch_sums(s);
    to_probabilities(begin);
    to_fragments(p, s);
  }
  for (int n = begin; n < end; ++n) {
    cp_async_wait<0>();
    show_to_products();
    // These values and the next keys are there, and nobody reads the ones before them any more.
    __syncthreads();
    if (n + 1 < end) {
      load_values(n + 1);
      load_keys(n + 2);
      cp_async_commit();
    }
    warpgroup_begin();
    if (n + 1 == end) {
      begin_fragments<kKeys, kD>(sums, p, stage_of(values, n), true);
      warpgroup_commit();
      warpgroup_wait<0>();
      touch_sums(sums);
      break;
    }
    begin_rows<kRows, kKeys, kD>(s, queries, group_row, stage_of(keys, n + 1));
    warpgroup_commit();
    begin_fragments<kKeys, kD>(sums, p, stage_of(values, n), true);
    warpgroup_commit();
    warpgroup_wait<1>();
    touch_sums(s);
    to_probabilities(n + 1);
    warpgroup_wait<0>();
    touch_sums(sums);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      // Most tiles have no larger score than those before.
      if (__ballot_sync(kAllLanes, keep[half] != 1.0f) != 0) multiply_row(sums, half, keep[half]);
    to_fragments(p, s);
  }

  FinishedRow<bf16> finished[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = softmax[half].whole_total();
    const int row = own_row + 8 * half;
    if (row < in.sizes.queries)
      finished[half] = finish_row(to, 0, b, head, row, total, softmax[half].top * in.mask.scale);
  }
  __syncwarp();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (t == 0) finished[half].store_lse();
#pragma unroll
    for (int i = 0; i < kD / 8; ++i)
      finished[half].store(8 * i + 2 * t, in.sizes.value_dims, sums[i][2 * half],
                           sums[i][2 * half + 1]);
  }
}

template <int kD>
void run(cudaStream_t stream, const AttentionInputs<bf16>& in, const AttentionOut<bf16>& out) {
  const ForwardPlan plan{
      .tiles = static_cast<int>(blocks_for(in.sizes.queries, ForwardShape<kD>::kRows)),
      .heads = in.sizes.heads,
      .pack = 1};
  const std::int64_t blocks = std::int64_t{plan.tiles} * plan.heads * in.sizes.batch;
  launch(in.mask.dropout.threshold != 0 ? forward_sm90_kernel<kD, true>
                                        : forward_sm90_kernel<kD, false>,
         {.blocks = static_cast<unsigned>(blocks),
          .threads = ForwardShape<kD>::kThreads,
          .shared_bytes = shared_bytes<kD>()},
         stream, in, out, plan);
}

}  // namespace

void attention_forward_sm90(cudaStream_t stream, const AttentionInputs<bf16>& in,
                            const AttentionOut<bf16>& out) {
  if (in.sizes.dims <= 64 && in.sizes.value_dims <= 64)
    run<64>(stream, in, out);
  else
    run<128>(stream, in, out);
}

}  // namespace sortie::trainer::ops::cuda
