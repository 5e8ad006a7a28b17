// Attention's forward pass in bf16 with warpgroup products (Shah et al. 2024): as
// attention_forward.cu, with 64 rows per warpgroup, whose products read keys and values from shared
// memory. The scores of the next keys are computed while the values of these are summed.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/attention_forward.h"
#include "trainer/ops/cuda/attention_sm90.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// How work is split, as measured on an H200.
template <int kD>
struct ForwardShape {
  static constexpr int kGroups = kD == 64 ? 1 : 2;  // warpgroups per block, with 64 queries each
  static constexpr int kBlocks = kD == 64 ? 4 : 1;  // per multiprocessor
  static constexpr int kKeys = kD == 64 ? 64 : 128;  // per step
  static constexpr int kThreads = kGroups * kWarpgroup, kRows = kGroups * 64;
};
constexpr int kStages = 2;

template <int kD>
constexpr std::size_t shared_bytes() {
  return static_cast<std::size_t>(
             PanelTile<kD>::elements(ForwardShape<kD>::kRows +
                                    2 * kStages * ForwardShape<kD>::kKeys)) *
         sizeof(bf16);
}

/// `kDrops`: with dropout, whose state needs registers.
template <int kD, bool kDrops>
__global__ void __launch_bounds__(ForwardShape<kD>::kThreads, ForwardShape<kD>::kBlocks)
    forward_sm90_kernel(AttentionInputs<bf16> in, AttentionOut<bf16> to, BlockPlan plan) {
  if (!kHasWarpgroups) __trap();
  constexpr int kThreads = ForwardShape<kD>::kThreads, kRows = ForwardShape<kD>::kRows,
                kKeys = ForwardShape<kD>::kKeys;
  auto* queries = shared_memory<bf16>();
  bf16* keys = queries + PanelTile<kD>::elements(kRows);
  bf16* values = keys + PanelTile<kD>::elements(kStages * kKeys);
  auto* scratch = shared_memory<SeenByAll>();  // used before rows are loaded

  const BlockPlace place = place_of_block<false>(plan);
  const int head = place.head, tile = plan.tiles - 1 - place.tile;
  const std::int64_t b = place.sample;
  const int first_row = tile * kRows;
  const int key_head = head / plan.group;
  const int lane = lane_of_thread(), warp = uniform_warp();
  const int g = lane / 4, t = lane % 4;
  const int group_row = warp / 4 * 64, own_row = first_row + warp * 16 + g;

  const auto span_of = [&](int row) {
    if (row >= in.sizes.queries) return KeySpan{0, 0};
    return seen_keys(in.mask, in.sizes.keys, row, document_start(in.mask, b, row));
  };
  SeenByAll of_warp, of_block;
  if (in.mask.starts == nullptr) {
    const auto seen = [&](int first, int count) {
      return seen_by_rows(in.mask, in.sizes.keys, first, min(first + count, in.sizes.queries));
    };
    of_warp = seen(first_row + warp * 16, 16);
    of_block = seen(first_row, kRows);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (own_row + 8 * half < in.sizes.queries) of_warp.add(span_of(own_row + 8 * half));
    of_warp = over_warp(of_warp);
    of_block = over_block(of_warp, scratch);
  }
  const int begin = of_block.end == 0 ? 0 : of_block.first / kKeys,
            end = of_block.end == 0 ? 0 : (of_block.end + kKeys - 1) / kKeys;

  const auto stage_of = [](bf16* tiles, int n) {
    return tiles + n % kStages * PanelTile<kD>::elements(kKeys);
  };
  PanelLoader<kKeys, kD, kThreads> of_keys(in.k.token, in.sizes.dims),
      of_values(in.v.token, in.sizes.value_dims);
  of_keys.go_to(in.k.data + b * in.k.sample + key_head * in.k.head, begin * kKeys, in.sizes.keys);
  of_values.go_to(in.v.data + b * in.v.sample + key_head * in.v.head, begin * kKeys,
                  in.sizes.keys);
  const auto load_keys = [&](int n) {
    if (n < end) of_keys.load(stage_of(keys, n));
  };
  const auto load_values = [&](int n) {
    if (n < end) of_values.load(stage_of(values, n));
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
      // Rarely needed, and recomputed because registers are scarce.
      KeySpan span{0, 0};
      if (masked) span = span_of(own_row + 8 * half);
      keep[half] = softmax[half].add(s, half, first_key, masked, span, scale);
      if constexpr (kDrops)
        drop_probabilities<true>(s, half, in.mask, b, head, own_row + 8 * half, first_key);
    }
  };

  if (begin < end) {
    const bf16* q = in.q.data + b * in.q.sample + head * in.q.head;
    PanelLoader<kRows, kD, kThreads> of_queries(in.q.token, in.sizes.dims);
    of_queries.go_to(q, first_row, in.sizes.queries);
    of_queries.load(queries);
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
    // These values and the next keys are loaded, and no thread still reads the ones before them.
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
      // In most tiles no score is larger than those before.
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
  for (int half = 0; half < 2; ++half)
    if (t == 0) finished[half].store_lse();
  if (to.result == AttentionResult::store && to.out.in_pieces) {
    static_assert(kThreads / kWarp * kStagingOfWarp<kD> <= PanelTile<kD>::elements(kRows + kKeys));
    __syncthreads();  // products of other warps may still read this memory
    const int first = first_row + warp * 16;
    store_rows<kD>(queries, warp, sums, {finished[0].factor, finished[1].factor},
                   to.out.data + b * to.out.sample + first * to.out.token + head * to.out.head,
                   to.out.token, in.sizes.queries - first, in.sizes.value_dims);
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < kD / 8; ++i)
      finished[half].store(8 * i + 2 * t, in.sizes.value_dims, sums[i][2 * half],
                           sums[i][2 * half + 1]);
}

template <int kD>
void run(cudaStream_t stream, const AttentionInputs<bf16>& in, const AttentionOut<bf16>& out) {
  const BlockPlan plan = forward_plan(in.sizes, ForwardShape<kD>::kRows, 1, 1);
  launch(in.mask.dropout.threshold != 0 ? forward_sm90_kernel<kD, true>
                                        : forward_sm90_kernel<kD, false>,
         {.blocks = blocks_of(plan),
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
