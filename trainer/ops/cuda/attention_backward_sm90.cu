// Attention's backward pass in bf16 by products of warpgroups: as attention_backward.cu, in blocks
// of one warpgroup with 64 own rows, whose products read the other rows from shared memory
// themselves. Blocks that share a multiprocessor compute exponentials while others multiply.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/attention_backward.h"
#include "trainer/ops/cuda/dropout_run.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/warpgroup.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kThreads = kWarpgroup;
constexpr int kOwn = 64, kOther = 64;
constexpr int kStages = 2;

/// What is known of the query of an other row.
struct QueryNumbers {
  float lse, delta;
  std::int32_t start;
};

template <int kD>
constexpr std::size_t shared_bytes() {
  return static_cast<std::size_t>(2 * PanelTile<kD>::elements(kOwn + kStages * kOther)) *
             sizeof(bf16) +
         kStages * kOther * sizeof(QueryNumbers);
}

template <bool kOwnKeys, int kD, bool kReads>
__global__ void __launch_bounds__(kThreads, kD == 64 ? 3 : 2)
    backward_sm90_kernel(BackwardInputs<bf16> all, AttentionGradients<bf16> to, BackwardPlan plan) {
  if (!kHasWarpgroups) __trap();
  constexpr int kTile = PanelTile<kD>::elements(kOther), kN = kOther / 8;
  const AttentionInputs<bf16>& in = all.in;
  const KeyMask& mask = in.mask;
  auto* own1 = shared_memory<bf16>();
  bf16* own2 = own1 + PanelTile<kD>::elements(kOwn);
  bf16* others1 = own2 + PanelTile<kD>::elements(kOwn);
  bf16* others2 = others1 + kStages * kTile;
  auto* numbers = reinterpret_cast<QueryNumbers*>(others2 + kStages * kTile);
  auto* scratch = shared_memory<SeenByAll>();  // before rows come

  const BackwardBlock<kOwnKeys> block(in.sizes, plan);
  const std::int64_t b = block.sample;
  const int own_head = block.head, first_own = block.tile * kOwn;
  const int group = in.sizes.heads / in.sizes.key_heads;
  const int key_head = kOwnKeys ? own_head : own_head / group;
  const int own_rows = kOwnKeys ? in.sizes.keys : in.sizes.queries;
  const int other_rows = kOwnKeys ? in.sizes.queries : in.sizes.keys;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  const int warp_row = warp * 16, own_row = first_own + warp_row + g;

  // What own queries see, or the own keys as those that are seen.
  KeySpan spans[2];
  float lses[2], deltas[2];
  SeenByAll of_warp;
  int begin = 0, end = 0;  // other rows
  if constexpr (kOwnKeys) {
    queries_of_keys(in.sizes, mask, b, first_own, min(first_own + kOwn, own_rows), scratch, begin,
                    end);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row + 8 * half;
      spans[half] = {0, 0};
      lses[half] = deltas[half] = 0.0f;
      if (row >= own_rows) continue;
      spans[half] = seen_keys(mask, in.sizes.keys, row, document_start(mask, b, row));
      of_warp.add(spans[half]);
      lses[half] = all.lse.data[b * all.lse.sample + own_head * all.lse.head + row] * kLog2E;
      deltas[half] = all.delta[(b * in.sizes.heads + own_head) * in.sizes.queries + row];
    }
    of_warp = over_warp(of_warp);
    const SeenByAll of_block = over_block(of_warp, scratch);
    begin = min(of_block.first, of_block.end), end = of_block.end;
  }
  const int first_tile = begin / kOther;
  const int tiles = end > begin ? (end + kOther - 1) / kOther - first_tile : 0;
  const int first_head = block.first_query_head(group), heads = block.query_heads(group);
  const int steps = heads * tiles;

  const auto load = [&](bf16* tile, const Heads<const bf16>& x, int head, int first, int rows,
                        int columns) {
    const bf16* from = x.data + b * x.sample + head * x.head;
    load_tile<kOther, kD, kThreads>(
        tile, columns, true, from,
        [&](int row) { return first + row < rows ? from + (first + row) * x.token : nullptr; },
        [](int row, int column) { return PanelTile<kD>::at(kOther, row, column); });
  };
  static_assert(kOwn == kOther);
  const auto load_others = [&](int step) {
    const int head = kOwnKeys ? first_head + step / tiles : key_head;
    const int first = (first_tile + step % tiles) * kOther, stage = step % kStages;
    load(others1 + stage * kTile, kOwnKeys ? in.q : in.k, head, first, other_rows, in.sizes.dims);
    load(others2 + stage * kTile, kOwnKeys ? all.dout : in.v, head, first, other_rows,
         in.sizes.value_dims);
    if constexpr (kOwnKeys) {
      const auto i = static_cast<int>(threadIdx.x);
      if (i < kOther) {
        const int row = first + i;
        const bool valid = row < other_rows;
        const float* lse = all.lse.data + b * all.lse.sample + head * all.lse.head;
        const float* delta = all.delta + (b * in.sizes.heads + head) * in.sizes.queries;
        QueryNumbers* its = numbers + stage * kOther + i;
        cp_async_4(&its->lse, lse + (valid ? row : 0), valid);
        cp_async_4(&its->delta, delta + (valid ? row : 0), valid);
        if (mask.starts != nullptr)
          cp_async_4(&its->start, mask.starts + b * mask.starts_stride + (valid ? row : 0), valid);
      }
    }
    cp_async_commit();
  };
  if (steps > 0) {
    const int head = kOwnKeys ? key_head : own_head;
    load(own1, kOwnKeys ? in.k : in.q, head, first_own, own_rows, in.sizes.dims);
    load(own2, kOwnKeys ? in.v : all.dout, head, first_own, own_rows, in.sizes.value_dims);
    load_others(0);
  }

  float grad1[kD / 8][4] = {}, grad2[kOwnKeys ? kD / 8 : 1][4] = {};
  std::uint32_t p_fragments[kOwnKeys ? kOther / 16 : 1][4], ds_fragments[kOther / 16][4];
  const float scale = mask.scale * kLog2E;

  for (int step = 0; step < steps; ++step) {
    cp_async_wait<0>();
    show_to_products();
    __syncthreads();  // these rows are there, and nobody reads those of the step before any more
    if (step + 1 < steps) load_others(step + 1);
    const int stage = step % kStages, first = (first_tile + step % tiles) * kOther;
    const bf16* other1 = others1 + stage * kTile;
    const bf16* other2 = others2 + stage * kTile;
    const QueryNumbers* queries = numbers + stage * kOther;
    const int head = kOwnKeys ? first_head + step / tiles : own_head;

    float p[kN][4], ds[kN][4];
    warpgroup_begin();
    begin_rows<kOwn, kOther, kD>(p, own1, 0, other1);
    warpgroup_commit();
    begin_rows<kOwn, kOther, kD>(ds, own2, 0, other2);
    warpgroup_commit();

    bool masked;
    if constexpr (kOwnKeys) {
      const int oldest = first_own + warp_row + mask.first_key,
                newest = min(oldest + 16, own_rows + mask.first_key) - 1;
      const int from = mask.first_query + first,
                to_place = mask.first_query + min(first + kOther, other_rows) - 1;
      masked = mask.starts != nullptr || from < newest || to_place - oldest >= mask.window ||
               first + kOther > other_rows;
    } else {
      masked = !of_warp.all(first, first + kOther);
    }
    warpgroup_wait<1>();
    touch_sums(p);
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * n + 2 * t + i % 2;
        float lse = 0.0f;
        if constexpr (kOwnKeys)
          lse = queries[column].lse * kLog2E;
        else
          lse = lses[i / 2];
        float value = exp2_fast(p[n][i] * scale - lse);
        if (masked) {
          bool seen;
          if constexpr (kOwnKeys) {
            const int query = first + column;
            const int start = mask.starts == nullptr ? 0 : queries[column].start;
            seen = query < other_rows &&
                   seen_keys(mask, in.sizes.keys, query, start).has(own_row + i / 2 * 8);
          } else {
            seen = spans[i / 2].has(first + column);
          }
          if (!seen) value = 0.0f;
        }
        p[n][i] = value;
      }
    warpgroup_wait<0>();
    touch_sums(ds);
    const bool drops = mask.dropout.threshold != 0;
    DropoutRun dropout(mask.dropout, b, kReads);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const int column = 8 * n + 2 * t + i % 2;
        float delta;
        if constexpr (kOwnKeys)
          delta = queries[column].delta;
        else
          delta = deltas[i / 2];
        // What dropout makes of dout v^T, and of p for dv.
        float factor = 1.0f;
        if (drops) {
          const int own = own_row + i / 2 * 8, other = first + column;
          const int query = kOwnKeys ? other : own, key = kOwnKeys ? own : other;
          factor = dropout(
              (head * mask.tokens + mask.first_query + query) * mask.tokens + mask.first_key + key,
              1.0f);
        }
        const float kept = drops ? (factor == 0.0f ? 0.0f : ds[n][i] * factor) : ds[n][i];
        ds[n][i] = p[n][i] * (kept - delta);
        if (kOwnKeys && drops) p[n][i] = factor == 0.0f ? 0.0f : p[n][i] * factor;
      }
    to_fragments(ds_fragments, ds);
    if constexpr (kOwnKeys) to_fragments(p_fragments, p);
    warpgroup_begin();
    if constexpr (kOwnKeys) begin_fragments<kOther, kD>(grad2, p_fragments, other2);
    begin_fragments<kOther, kD>(grad1, ds_fragments, other1);
    warpgroup_commit();
    warpgroup_wait<0>();
    if constexpr (kOwnKeys) touch_sums(grad2);
    touch_sums(grad1);
  }

  const auto store = [&](const auto& sums, const Heads<bf16>& narrow, const Heads<float>& wide,
                         float* parts, int columns, float factor) {
    const auto rows = gradient_rows(block, in.sizes, to.add, narrow, wide, parts, columns);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row + 8 * half;
      if (row >= own_rows) continue;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
        rows.store(row, 8 * n + 2 * t, columns, sums[n][2 * half] * factor,
                   sums[n][2 * half + 1] * factor);
    }
  };
  if constexpr (kOwnKeys) {
    store(grad1, to.dk, to.dk_f32, to.dk_parts, in.sizes.dims, mask.scale);
    store(grad2, to.dv, to.dv_f32, to.dv_parts, in.sizes.value_dims, 1.0f);
  } else {
    store(grad1, to.dq, to.dq_f32, nullptr, in.sizes.dims, mask.scale);
  }
}

template <bool kOwnKeys, int kD>
void run_pass(cudaStream_t stream, const BackwardInputs<bf16>& all,
              const AttentionGradients<bf16>& to) {
  const AttentionSizes& sizes = all.in.sizes;
  const BackwardPlan plan{
      .tiles = static_cast<int>(blocks_for(kOwnKeys ? sizes.keys : sizes.queries, kOwn)),
      .heads = kOwnKeys ? sizes.key_heads : sizes.heads,
      .splits = kOwnKeys ? to.splits : 1};
  const std::int64_t blocks = std::int64_t{plan.tiles} * plan.heads * sizes.batch * plan.splits;
  launch(reads_values(all.in.mask) ? backward_sm90_kernel<kOwnKeys, kD, true>
                                   : backward_sm90_kernel<kOwnKeys, kD, false>,
         {.blocks = static_cast<unsigned>(blocks),
          .threads = kThreads,
          .shared_bytes = shared_bytes<kD>()},
         stream, all, to, plan);
}

}  // namespace

void attention_backward_sm90(cudaStream_t stream, const AttentionInputs<bf16>& in,
                             Heads<const bf16> dout, RowValues<const float> lse, const float* delta,
                             const AttentionGradients<bf16>& gradients) {
  const BackwardInputs<bf16> all{in, dout, lse, delta};
  if (in.sizes.dims <= 64 && in.sizes.value_dims <= 64) {
    run_pass<false, 64>(stream, all, gradients);
    run_pass<true, 64>(stream, all, gradients);
  } else {
    run_pass<false, 128>(stream, all, gradients);
    run_pass<true, 128>(stream, all, gradients);
  }
}

}  // namespace sortie::trainer::ops::cuda
