// Attention's backward pass in bf16 with warpgroup products: as attention_backward.cu, in blocks of
// one or two warpgroups with 64 own rows each, whose products read the other rows from shared
// memory. Blocks that share a multiprocessor compute exponentials while others multiply.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/attention_backward.h"
#include "trainer/ops/cuda/attention_sm90.h"
#include "trainer/ops/cuda/dropout_run.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kOther = 64;

/// How work is split, as measured on an H200. `kGrouped`: several query heads read the own keys;
/// there are fewer blocks, and they take longer.
template <bool kOwnKeys, int kD, bool kDrops, bool kGrouped>
struct BackwardShape {
  static constexpr int kGroups = kD == 64 ? 1 : 2;  // warpgroups per block, with 64 own rows each
  static constexpr int kBlocks =
      kD == 64 ? (kDrops || kGrouped ? 2 : 3) : 1;  // per multiprocessor
  static constexpr int kThreads = kGroups * kWarpgroup, kOwn = kGroups * 64;
  /// Products of a step are waited for in the next step, after its first products were started. Not
  /// with the sums of both dk and dv, for which registers do not suffice.
  static constexpr bool kLate = !kOwnKeys;
  static constexpr int kStages = kLate ? 3 : 2;  // of other rows
};

/// Values of the queries of other rows, except the starts of their documents.
struct QueryNumbers {
  float lse[kOther], delta[kOther];
};

template <class Shape, int kD>
constexpr std::size_t shared_bytes() {
  constexpr int kRows = Shape::kOwn + Shape::kStages * kOther;
  return static_cast<std::size_t>(2 * PanelTile<kD>::elements(kRows)) * sizeof(bf16) +
         Shape::kStages * (sizeof(QueryNumbers) + kOther * sizeof(std::int32_t));
}

template <int N>
__device__ __forceinline__ void clear_sums(float (&sums)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
}

/// `kDrops`: with dropout, whose state needs registers.
template <bool kOwnKeys, int kD, bool kDrops, bool kGrouped>
__global__ void __launch_bounds__(BackwardShape<kOwnKeys, kD, kDrops, kGrouped>::kThreads,
                                  BackwardShape<kOwnKeys, kD, kDrops, kGrouped>::kBlocks)
    backward_sm90_kernel(BackwardInputs<bf16> all, AttentionGradients<bf16> to, BlockPlan plan) {
  if (!kHasWarpgroups) __trap();
  using Shape = BackwardShape<kOwnKeys, kD, kDrops, kGrouped>;
  constexpr int kThreads = Shape::kThreads, kOwn = Shape::kOwn, kStages = Shape::kStages;
  constexpr bool kLate = Shape::kLate;
  constexpr int kTile = PanelTile<kD>::elements(kOther), kN = kOther / 8;
  const AttentionInputs<bf16>& in = all.in;
  const KeyMask& mask = in.mask;
  auto* own1 = shared_memory<bf16>();
  bf16* own2 = own1 + PanelTile<kD>::elements(kOwn);
  bf16* others1 = own2 + PanelTile<kD>::elements(kOwn);
  bf16* others2 = others1 + kStages * kTile;
  auto* numbers = reinterpret_cast<QueryNumbers*>(others2 + kStages * kTile);
  auto* all_starts = reinterpret_cast<std::int32_t*>(numbers + kStages);
  auto* scratch = shared_memory<SeenByAll>();  // used before rows are loaded

  const BackwardBlock<kOwnKeys> block(plan);
  const std::int64_t b = block.sample;
  const int own_head = block.head, first_own = block.tile * kOwn;
  const int group = plan.group;
  const int key_head = kOwnKeys ? own_head : own_head / group;
  const int own_rows = kOwnKeys ? in.sizes.keys : in.sizes.queries;
  const int other_rows = kOwnKeys ? in.sizes.queries : in.sizes.keys;
  const int lane = lane_of_thread(), warp = uniform_warp();
  const int g = lane / 4, t = lane % 4;
  const int warp_row = warp * 16, own_row = first_own + warp_row + g;
  const int group_row = warp / 4 * 64;

  // What the own queries see, or which queries see the own keys.
  KeySpan spans[2];
  float lses[2] = {}, deltas[2] = {};
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
      if (row < own_rows)
        spans[half] = seen_keys(mask, in.sizes.keys, row, document_start(mask, b, row));
    }
    SeenByAll of_block;
    if (mask.starts == nullptr) {
      const auto seen = [&](int from, int count) {
        return seen_by_rows(mask, in.sizes.keys, from, min(from + count, own_rows));
      };
      of_warp = seen(first_own + warp_row, 16);
      of_block = seen(first_own, kOwn);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (own_row + 8 * half < own_rows) of_warp.add(spans[half]);
      of_warp = over_warp(of_warp);
      of_block = over_block(of_warp, scratch);
    }
    begin = min(of_block.first, of_block.end), end = of_block.end;
  }
  const int first_tile = begin / kOther;
  const int tiles = end > begin ? (end + kOther - 1) / kOther - first_tile : 0;
  const int first_head = block.first_query_head(group), heads = block.query_heads(group);
  const int steps = heads * tiles;

  const auto head_of = [&](const Heads<const bf16>& x, int head) {
    return x.data + b * x.sample + head * x.head;
  };
  const auto load_own = [&](bf16* tile, const Heads<const bf16>& x, int head, int columns) {
    PanelLoader<kOwn, kD, kThreads> loader(x.token, columns);
    loader.go_to(head_of(x, head), first_own, own_rows);
    loader.load(tile);
  };
  // Counters for the next other rows to load, and for those of a step: divisions would take too
  // long.
  const Heads<const bf16>&x1 = kOwnKeys ? in.q : in.k, &x2 = kOwnKeys ? all.dout : in.v;
  PanelLoader<kOther, kD, kThreads> loader1(x1.token, in.sizes.dims),
      loader2(x2.token, in.sizes.value_dims);
  int next_head = kOwnKeys ? first_head : key_head, next_tile = 0, next_stage = 0;
  const auto load_others = [&] {
    const int head = next_head, first = (first_tile + next_tile) * kOther, stage = next_stage;
    next_stage = next_stage + 1 < kStages ? next_stage + 1 : 0;
    if (next_tile == 0) {
      loader1.go_to(head_of(x1, head), first, other_rows);
      loader2.go_to(head_of(x2, head), first, other_rows);
    }
    if (++next_tile == tiles) {
      next_tile = 0;
      if (kOwnKeys) ++next_head;
    }
    loader1.load(others1 + stage * kTile);
    loader2.load(others2 + stage * kTile);
    if constexpr (kOwnKeys) {
      const auto i = static_cast<int>(threadIdx.x);
      if (i < kOther) {
        const int row = first + i;
        const bool valid = row < other_rows;
        const float* lse = all.lse.data + b * all.lse.sample + head * all.lse.head;
        const float* delta = all.delta + (b * in.sizes.heads + head) * in.sizes.queries;
        QueryNumbers& its = numbers[stage];
        cp_async_4(its.lse + i, lse + (valid ? row : 0), valid);
        cp_async_4(its.delta + i, delta + (valid ? row : 0), valid);
        if (mask.starts != nullptr)
          cp_async_4(all_starts + stage * kOther + i,
                     mask.starts + b * mask.starts_stride + (valid ? row : 0), valid);
      }
    }
    cp_async_commit();
  };
  if (steps > 0) {
    const int head = kOwnKeys ? key_head : own_head;
    load_own(own1, kOwnKeys ? in.k : in.q, head, in.sizes.dims);
    load_own(own2, kOwnKeys ? in.v : all.dout, head, in.sizes.value_dims);
    load_others();
    if constexpr (!kOwnKeys) {
      const float* lse = all.lse.data + b * all.lse.sample + own_head * all.lse.head;
      const float* delta = all.delta + (b * in.sizes.heads + own_head) * in.sizes.queries;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = own_row + 8 * half;
        lses[half] = row < own_rows ? lse[row] * kLog2E : 0.0f;
        deltas[half] = row < own_rows ? delta[row] : 0.0f;
      }
    }
  }

  float grad1[kD / 8][4], grad2[kOwnKeys ? kD / 8 : 1][4];
  bool any = !kLate;  // the sums hold values, to which products add
  if constexpr (!kLate) {
    clear_sums(grad1);
    clear_sums(grad2);
  }
  std::uint32_t p_fragments[kOwnKeys ? kOther / 16 : 1][4], ds_fragments[kOther / 16][4];
  const float scale = mask.scale * kLog2E;

  int this_head = kOwnKeys ? first_head : own_head, this_tile = 0, this_stage = 0;
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<0>();
    show_to_products();
    // These rows are loaded, and no thread still reads those that the next ones replace.
    __syncthreads();
    if (step + 1 < steps) load_others();
    const int stage = this_stage, first = (first_tile + this_tile) * kOther, head = this_head;
    this_stage = this_stage + 1 < kStages ? this_stage + 1 : 0;
    if (++this_tile == tiles) {
      this_tile = 0;
      if (kOwnKeys) ++this_head;
    }
    const bf16* other1 = others1 + stage * kTile;
    const bf16* other2 = others2 + stage * kTile;
    const QueryNumbers& queries = numbers[stage];
    const std::int32_t* starts = all_starts + stage * kOther;

    // Whether any of the warpgroup's rows and the others can see each other.
    const int own_place = first_own + group_row + (kOwnKeys ? mask.first_key : mask.first_query),
              other_place = first + (kOwnKeys ? mask.first_query : mask.first_key);
    const int newest_query = (kOwnKeys ? other_place + kOther : own_place + 64) - 1,
              oldest_query = kOwnKeys ? other_place : own_place,
              newest_key = (kOwnKeys ? own_place + 64 : other_place + kOther) - 1,
              oldest_key = kOwnKeys ? own_place : other_place;
    if (newest_query < oldest_key || oldest_query - newest_key >= mask.window) {
      warpgroup_wait<0>();
      continue;
    }

    float p[kN][4], ds[kN][4];
    warpgroup_begin();
    begin_rows<kOwn, kOther, kD>(p, own1, group_row, other1);
    warpgroup_commit();
    begin_rows<kOwn, kOther, kD>(ds, own2, group_row, other2);
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
    // Loops without branches, so that exponentials are computed in parallel.
    const auto pair_at = [&](const float* of_queries, int n) {
      return *reinterpret_cast<const Pack<float, 2>*>(of_queries + 8 * n + 2 * t);
    };
    warpgroup_wait<1>();
    touch_sums(p);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      Pack<float, 2> at;
      if constexpr (kOwnKeys) at = pair_at(queries.lse, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float lse = kOwnKeys ? at.values[i % 2] * kLog2E : lses[i / 2];
        p[n][i] = exp2_fast(p[n][i] * scale - lse);
      }
    }
    if (masked) {
      // For each half: the distance of column 2t's query from the own key, or of its key from the
      // first one that the own query sees; and how many are seen.
      int at[2];
      unsigned seen[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = own_row + 8 * half;
        at[half] = kOwnKeys ? mask.first_query + first + 2 * t - mask.first_key - row
                            : first + 2 * t - spans[half].first;
        seen[half] = static_cast<unsigned>(kOwnKeys ? mask.window : spans[half].count);
      }
      const int rest = other_rows - first - 2 * t;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = 8 * n + i % 2;
          if (static_cast<unsigned>(at[i / 2] + column) >= seen[i / 2] || column >= rest)
            p[n][i] = 0.0f;
        }
      if (kOwnKeys && mask.starts != nullptr) {
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (mask.first_key + own_row + i / 2 * 8 < starts[8 * n + 2 * t + i % 2])
              p[n][i] = 0.0f;
      }
    }
    warpgroup_wait<0>();
    touch_sums(ds);
    if constexpr (kDrops) {
      // Applies dropout to dout v^T, and to p for dv.
      DropoutRun dropout(mask.dropout, b);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const int column = 8 * n + 2 * t + i % 2;
          const int own = own_row + i / 2 * 8, other = first + column;
          const int query = kOwnKeys ? other : own, key = kOwnKeys ? own : other;
          const float factor = dropout(
              (head * mask.tokens + mask.first_query + query) * mask.tokens + mask.first_key + key,
              1.0f);
          const float delta = kOwnKeys ? queries.delta[column] : deltas[i / 2];
          ds[n][i] = p[n][i] * ((factor == 0.0f ? 0.0f : ds[n][i] * factor) - delta);
          if constexpr (kOwnKeys) p[n][i] = factor == 0.0f ? 0.0f : p[n][i] * factor;
        }
    } else {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        Pack<float, 2> at;
        if constexpr (kOwnKeys) at = pair_at(queries.delta, n);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          ds[n][i] = p[n][i] * (ds[n][i] - (kOwnKeys ? at.values[i % 2] : deltas[i / 2]));
      }
    }
    to_fragments(ds_fragments, ds);
    if constexpr (kOwnKeys) to_fragments(p_fragments, p);
    warpgroup_begin();
    if constexpr (kOwnKeys) begin_fragments<kOther, kD>(grad2, p_fragments, other2, any);
    begin_fragments<kOther, kD>(grad1, ds_fragments, other1, any);
    any = true;
    warpgroup_commit();
    if constexpr (!kLate) {
      warpgroup_wait<0>();
      touch_sums(grad2);
      touch_sums(grad1);
    }
  }
  warpgroup_wait<0>();
  if constexpr (kOwnKeys) touch_sums(grad2);
  touch_sums(grad1);
  if (!any) {
    clear_sums(grad1);
    if constexpr (kOwnKeys) clear_sums(grad2);
  }

  const auto store = [&](const auto& sums, const Heads<bf16>& narrow, const Heads<float>& wide,
                         float* parts, int columns, float factor) {
    const auto rows = gradient_rows(block, in.sizes, to.add, narrow, wide, parts, columns);
    if (rows.wide == nullptr && rows.in_pieces) {
      const int first = first_own + warp_row;
      store_rows<kD>(own1, warp, sums, {factor, factor}, rows.narrow + first * rows.stride,
                     rows.stride, own_rows - first, columns);
      return;
    }
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
  static_assert(kThreads / kWarp * kStagingOfWarp<kD> <= 2 * PanelTile<kD>::elements(kOwn));
  __syncthreads();  // products of other warps may still read the own rows
  if constexpr (kOwnKeys) {
    store(grad1, to.dk, to.dk_f32, to.dk_parts, in.sizes.dims, mask.scale);
    store(grad2, to.dv, to.dv_f32, to.dv_parts, in.sizes.value_dims, 1.0f);
  } else {
    store(grad1, to.dq, to.dq_f32, nullptr, in.sizes.dims, mask.scale);
  }
}

template <bool kOwnKeys, int kD, bool kDrops, bool kGrouped = false>
void run_pass(cudaStream_t stream, const BackwardInputs<bf16>& all,
              const AttentionGradients<bf16>& to) {
  using Shape = BackwardShape<kOwnKeys, kD, kDrops, kGrouped>;
  const AttentionSizes& sizes = all.in.sizes;
  const BlockPlan plan = backward_plan<kOwnKeys, bf16>(sizes, Shape::kOwn, to.splits);
  launch(backward_sm90_kernel<kOwnKeys, kD, kDrops, kGrouped>,
         {.blocks = blocks_of(plan),
          .threads = Shape::kThreads,
          .shared_bytes = shared_bytes<Shape, kD>()},
         stream, all, to, plan);
}

template <int kD, bool kDrops>
void run(cudaStream_t stream, const BackwardInputs<bf16>& all, const AttentionGradients<bf16>& to) {
  run_pass<false, kD, kDrops>(stream, all, to);
  // With dropout, kGrouped makes no difference to BackwardShape.
  if constexpr (kD == 64 && !kDrops)
    if (all.in.sizes.heads > all.in.sizes.key_heads)
      return run_pass<true, kD, kDrops, true>(stream, all, to);
  run_pass<true, kD, kDrops>(stream, all, to);
}

}  // namespace

void attention_backward_sm90(cudaStream_t stream, const AttentionInputs<bf16>& in,
                             Heads<const bf16> dout, RowValues<const float> lse, const float* delta,
                             const AttentionGradients<bf16>& gradients) {
  const BackwardInputs<bf16> all{in, dout, lse, delta};
  const bool wide = in.sizes.dims > 64 || in.sizes.value_dims > 64;
  if (in.mask.dropout.threshold != 0)
    wide ? run<128, true>(stream, all, gradients) : run<64, true>(stream, all, gradients);
  else
    wide ? run<128, false>(stream, all, gradients) : run<64, false>(stream, all, gradients);
}

}  // namespace sortie::trainer::ops::cuda
