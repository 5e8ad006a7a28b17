// Attention's backward pass in f32 by FMA: the kernels of attention_backward.cu with tiles of 32
// own and 32 other rows, each loaded into one buffer whenever a product needs them.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/attention_backward.h"
#include "trainer/ops/cuda/attention_tiles_f32.h"
#include "trainer/ops/cuda/dropout_run.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <int kD>
constexpr std::size_t shared_bytes() {
  return (2 * TileF32<kD>::kElements + 2 * kScoresElements) * sizeof(float);
}

template <bool kOwnKeys, int kD, bool kReads>
__global__ void __launch_bounds__(kF32Threads)
    backward_f32_kernel(BackwardInputs<float> all, AttentionGradients<float> to,
                        BlockPlan plan) {
  const AttentionInputs<float>& in = all.in;
  const KeyMask& mask = in.mask;
  auto* own = shared_memory<float>();
  float* other = own + TileF32<kD>::kElements;
  float* p_shared = other + TileF32<kD>::kElements;
  float* ds_shared = p_shared + kScoresElements;
  auto* scratch = shared_memory<SeenByAll>();  // used before rows are loaded

  const BackwardBlock<kOwnKeys> block(plan);
  const std::int64_t b = block.sample;
  const int own_head = block.head, first_own = block.tile * kF32Rows;
  const int group = plan.group;
  const int key_head = kOwnKeys ? own_head : own_head / group;
  const int own_rows = kOwnKeys ? in.sizes.keys : in.sizes.queries;
  const int x = static_cast<int>(threadIdx.x) % kF32Side,
            y = static_cast<int>(threadIdx.x) / kF32Side;

  int begin = 0, end = 0;  // other rows
  if constexpr (kOwnKeys) {
    queries_of_keys(in.sizes, mask, b, first_own, min(first_own + kF32Rows, own_rows), scratch,
                    begin, end);
  } else {
    SeenByAll mine;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_own + 2 * y + i;
      if (row < own_rows)
        mine.add(seen_keys(mask, in.sizes.keys, row, document_start(mask, b, row)));
    }
    const SeenByAll seen = over_block(over_warp(mine), scratch);
    begin = min(seen.first, seen.end), end = seen.end;
  }
  const int first_tile = begin / kF32Rows;
  const int tiles = end > begin ? (end + kF32Rows - 1) / kF32Rows - first_tile : 0;
  const int first_head = block.first_query_head(group), heads = block.query_heads(group);

  const auto load = [&](float* tile, const Heads<const float>& from, int head, int first, int rows,
                        int columns) {
    const float* head_rows = from.data + b * from.sample + head * from.head;
    load_tile_f32<kD>(tile, columns, from.in_pieces, head_rows, [&](int row) {
      return first + row < rows ? head_rows + (first + row) * from.token : nullptr;
    });
  };
  const int dims = in.sizes.dims, value_dims = in.sizes.value_dims;
  const float scale = mask.scale * kLog2E;
  float grad1[2][kD / kF32Side] = {}, grad2[2][kD / kF32Side] = {};

  for (int step = 0; step < heads * tiles; ++step) {
    const int head = first_head + step / tiles, first = (first_tile + step % tiles) * kF32Rows;
    const auto load_queries = [&](float* tile, const Heads<const float>& from, int columns) {
      load(tile, from, head, kOwnKeys ? first : first_own, in.sizes.queries, columns);
    };
    const auto load_keys = [&](float* tile, const Heads<const float>& from, int columns) {
      load(tile, from, key_head, kOwnKeys ? first_own : first, in.sizes.keys, columns);
    };
    float* queries = kOwnKeys ? other : own;
    float* keys = kOwnKeys ? own : other;
    float p[2][2], ds[2][2];
    load_queries(queries, in.q, dims);
    load_keys(keys, in.k, dims);
    multiply_rows<kD>(p, own, other);
    __syncthreads();
    load_queries(queries, all.dout, value_dims);
    load_keys(keys, in.v, value_dims);
    multiply_rows<kD>(ds, own, other);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int own_row = first_own + 2 * y + i, other_row = first + x + kF32Side * j;
        const int query = kOwnKeys ? other_row : own_row, key = kOwnKeys ? own_row : other_row;
        const float score = p[i][j];
        p[i][j] = 0.0f;
        const float dp = ds[i][j];
        ds[i][j] = 0.0f;
        if (query >= in.sizes.queries ||
            !seen_keys(mask, in.sizes.keys, query, document_start(mask, b, query)).has(key))
          continue;
        const float lse = all.lse.data[b * all.lse.sample + head * all.lse.head + query];
        const float delta = all.delta[(b * in.sizes.heads + head) * in.sizes.queries + query];
        const float probability = exp2f(score * scale - lse * kLog2E);
        float kept = probability, dkept = dp;
        if (mask.dropout.threshold != 0) {
          DropoutRun dropout(mask.dropout, b, kReads);
          const float factor = dropout(
              (head * mask.tokens + mask.first_query + query) * mask.tokens + mask.first_key + key,
              1.0f);
          kept = factor == 0.0f ? 0.0f : probability * factor;
          dkept = factor == 0.0f ? 0.0f : dp * factor;
        }
        p[i][j] = kept;
        ds[i][j] = probability * (dkept - delta);
      }
    if constexpr (kOwnKeys) share_scores(p_shared, p);
    share_scores(ds_shared, ds);
    __syncthreads();
    if constexpr (kOwnKeys) {
      add_product<kD>(grad2, p_shared, other);
      __syncthreads();
      load_queries(other, in.q, dims);
    } else {
      load_keys(other, in.k, dims);
    }
    add_product<kD>(grad1, ds_shared, other);
    __syncthreads();
  }

  const auto store = [&](const auto& sums, const Heads<float>& narrow, const Heads<float>& wide,
                         float* parts, int columns, float factor) {
    const auto rows = gradient_rows(block, in.sizes, to.add, narrow, wide, parts, columns);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_own + 2 * y + i;
      if (row >= own_rows) continue;
#pragma unroll
      for (int n = 0; n < kD / kF32Side; n += 2)
        rows.store(row, 2 * x + kF32Side * n, columns, sums[i][n] * factor,
                   sums[i][n + 1] * factor);
    }
  };
  if constexpr (kOwnKeys) {
    store(grad1, to.dk, to.dk_f32, to.dk_parts, dims, mask.scale);
    store(grad2, to.dv, to.dv_f32, to.dv_parts, value_dims, 1.0f);
  } else {
    store(grad1, to.dq, to.dq_f32, nullptr, dims, mask.scale);
  }
}

}  // namespace

template <>
void attention_backward_tiles(cudaStream_t stream, const AttentionInputs<float>& in,
                              Heads<const float> dout, RowValues<const float> lse,
                              const float* delta, const AttentionGradients<float>& gradients) {
  const BackwardInputs<float> all{in, dout, lse, delta};
  with_head_size_f32(in.sizes.dims, in.sizes.value_dims, [&]<int kD>() {
    const auto run = [&]<bool kOwnKeys>() {
      const BlockPlan plan =
          backward_plan<kOwnKeys, float>(in.sizes, kF32Rows, gradients.splits);
      launch(reads_values(in.mask) ? backward_f32_kernel<kOwnKeys, kD, true>
                                   : backward_f32_kernel<kOwnKeys, kD, false>,
             {.blocks = blocks_of(plan),
              .threads = kF32Threads,
              .shared_bytes = shared_bytes<kD>()},
             stream, all, gradients, plan);
    };
    run.template operator()<false>();
    run.template operator()<true>();
  });
}

}  // namespace sortie::trainer::ops::cuda
