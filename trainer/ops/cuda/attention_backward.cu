// Attention's backward pass in bf16 on tensor cores (Dao 2023), without sums across blocks. One
// kernel takes tiles of queries and iterates over the keys for dq. Another takes tiles of keys and
// iterates over the queries of all heads that read them for dk and dv. Each recomputes the scores.
// Both are the same kernel, with `own` rows, which stay in shared memory, and `other` rows, which
// are loaded into two buffers. A warp has 16 or 32 own rows and their gradients in registers:
//   p = exp(own1 other1^T scale - lse), ds = p (own2 other2^T - delta),
//   grad1 += ds other1, and with keys as own rows grad2 += p^T other2;
// own1, own2 are q, dout or k, v; other1, other2 are the other two.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/attention_backward.h"
#include "trainer/ops/cuda/attention_tiles.h"
#include "trainer/ops/cuda/dropout_run.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

/// What a kernel computes. With wide heads, registers hold only the sums of dk or those of dv.
enum class Pass { dq, dk, dv, dk_dv };

template <Pass kPass, int kD, int kDv>
struct BackwardShape {
  static constexpr bool kOwnKeys = kPass != Pass::dq;
  static constexpr bool kFirst = kPass != Pass::dv;  // dq or dk
  static constexpr bool kSecond = kPass == Pass::dv || kPass == Pass::dk_dv;
  static constexpr int kM = kD <= 64 ? 2 : 1;
  static constexpr int kOwn = kWarps * 16 * kM;
  static constexpr int kOther = kD <= 128 ? 32 : 16;
  static constexpr std::size_t shared_bytes() {
    return static_cast<std::size_t>(Tile<kD>::elements(kOwn + 2 * kOther) +
                                    Tile<kDv>::elements(kOwn + 2 * kOther)) *
           sizeof(bf16);
  }
};

/// Values of the query of a tile's row, stored in the piece after the row's columns.
struct QueryNumbers {
  float lse, delta;
  std::int32_t start;
};
template <int kColumns>
__device__ __forceinline__ QueryNumbers* numbers_of(bf16* tile, int row) {
  return reinterpret_cast<QueryNumbers*>(tile + row * Tile<kColumns>::kStride + kColumns);
}
template <int kColumns>
__device__ __forceinline__ const QueryNumbers* numbers_of(const bf16* tile, int row) {
  return reinterpret_cast<const QueryNumbers*>(tile + row * Tile<kColumns>::kStride + kColumns);
}

/// Writes a warp's sums times `factor`; `row` is the warp's first row.
template <int kM, int kN>
__device__ __forceinline__ void store_sums(const float (&sums)[kM][kN][4],
                                           const GradientRows<bf16>& to, int row, int rows,
                                           int columns, float factor) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + 16 * m + 8 * half + g;
      if (at >= rows) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n)
        to.store(at, 8 * n + 2 * t, columns, sums[m][n][2 * half] * factor,
                 sums[m][n][2 * half + 1] * factor);
    }
}

template <Pass kPass, int kD, int kDv, bool kReads>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(BackwardInputs<bf16> all, AttentionGradients<bf16> to, BlockPlan plan) {
  using Shape = BackwardShape<kPass, kD, kDv>;
  constexpr int kM = Shape::kM, kOwn = Shape::kOwn, kOther = Shape::kOther, kN = kOther / 8;
  constexpr bool kOwnKeys = Shape::kOwnKeys;
  const AttentionInputs<bf16>& in = all.in;
  const KeyMask& mask = in.mask;
  auto* own1 = shared_memory<bf16>();
  bf16* own2 = own1 + Tile<kD>::elements(kOwn);
  bf16* others1 = own2 + Tile<kDv>::elements(kOwn);
  bf16* others2 = others1 + 2 * Tile<kD>::elements(kOther);
  auto* scratch = shared_memory<SeenByAll>();  // used before rows are loaded

  const BackwardBlock<kOwnKeys> block(plan);
  const std::int64_t b = block.sample;
  const int own_head = block.head, first_own = block.tile * kOwn;
  const int group = plan.group;
  const int key_head = kOwnKeys ? own_head : own_head / group;
  const int own_rows = kOwnKeys ? in.sizes.keys : in.sizes.queries;
  const int other_rows = kOwnKeys ? in.sizes.queries : in.sizes.keys;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  const int warp_row = warp * 16 * kM;

  // What the own queries see, or which queries see the own keys.
  KeySpan spans[kM][2];
  float lses[kM][2], deltas[kM][2];
  SeenByAll of_warp;
  int begin = 0, end = 0;  // other rows
  if constexpr (kOwnKeys) {
    queries_of_keys(in.sizes, mask, b, first_own, min(first_own + kOwn, own_rows), scratch, begin,
                    end);
  } else {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_own + warp_row + 16 * m + 8 * half + g;
        spans[m][half] = {0, 0};
        lses[m][half] = deltas[m][half] = 0.0f;
        if (row >= own_rows) continue;
        spans[m][half] = seen_keys(mask, in.sizes.keys, row, document_start(mask, b, row));
        of_warp.add(spans[m][half]);
        lses[m][half] = all.lse.data[b * all.lse.sample + own_head * all.lse.head + row] * kLog2E;
        deltas[m][half] = all.delta[(b * in.sizes.heads + own_head) * in.sizes.queries + row];
      }
    of_warp = over_warp(of_warp);
    const SeenByAll of_block = over_block(of_warp, scratch);
    begin = min(of_block.first, of_block.end), end = of_block.end;
  }
  const int first_tile = begin / kOther;
  const int tiles = end > begin ? (end + kOther - 1) / kOther - first_tile : 0;
  const int first_head = block.first_query_head(group), heads = block.query_heads(group);
  const int steps = heads * tiles;

  const auto rows_of = [&](const Heads<const bf16>& x, int head) {
    return x.data + b * x.sample + head * x.head;
  };
  const auto load = [&]<int kRows, int kColumns>(bf16* tile, const Heads<const bf16>& x, int head,
                                                 int first, int rows, int columns) {
    const bf16* from = rows_of(x, head);
    load_tile<kRows, kColumns, kThreads>(tile, columns, x.in_pieces, from, [&](int row) {
      return first + row < rows ? from + (first + row) * x.token : nullptr;
    });
  };
  const auto load_others = [&](int step) {
    const int head = kOwnKeys ? first_head + step / tiles : key_head;
    const int first = (first_tile + step % tiles) * kOther, stage = step % 2;
    load.template operator()<kOther, kD>(others1 + stage * Tile<kD>::elements(kOther),
                                         kOwnKeys ? in.q : in.k, head, first, other_rows,
                                         in.sizes.dims);
    load.template operator()<kOther, kDv>(others2 + stage * Tile<kDv>::elements(kOther),
                                          kOwnKeys ? all.dout : in.v, head, first, other_rows,
                                          in.sizes.value_dims);
    if constexpr (kOwnKeys) {
      const auto i = static_cast<int>(threadIdx.x);
      if (i < kOther) {
        const int row = first + i;
        const bool valid = row < other_rows;
        const float* lse = all.lse.data + b * all.lse.sample + head * all.lse.head;
        const float* delta = all.delta + (b * in.sizes.heads + head) * in.sizes.queries;
        auto* numbers = numbers_of<kD>(others1 + stage * Tile<kD>::elements(kOther), i);
        cp_async_4(&numbers->lse, lse + (valid ? row : 0), valid);
        cp_async_4(&numbers->delta, delta + (valid ? row : 0), valid);
        if (mask.starts != nullptr)
          cp_async_4(&numbers->start, mask.starts + b * mask.starts_stride + (valid ? row : 0),
                     valid);
      }
    }
    cp_async_commit();
  };
  if (steps > 0) {
    const int head = kOwnKeys ? key_head : own_head;
    load.template operator()<kOwn, kD>(own1, kOwnKeys ? in.k : in.q, head, first_own, own_rows,
                                       in.sizes.dims);
    load.template operator()<kOwn, kDv>(own2, kOwnKeys ? in.v : all.dout, head, first_own, own_rows,
                                        in.sizes.value_dims);
    load_others(0);
  }

  float grad1[kM][kD / 8][4], grad2[kM][kDv / 8][4];
  if constexpr (Shape::kFirst) clear(grad1);
  if constexpr (Shape::kSecond) clear(grad2);
  const float scale = mask.scale * kLog2E;

  for (int step = 0; step < steps; ++step) {
    cp_async_wait<0>();
    __syncthreads();  // these rows are loaded, and no thread still reads the previous ones
    if (step + 1 < steps) load_others(step + 1);
    const int stage = step % 2, first = (first_tile + step % tiles) * kOther;
    const bf16* other1 = others1 + stage * Tile<kD>::elements(kOther);
    const bf16* other2 = others2 + stage * Tile<kDv>::elements(kOther);
    const int head = kOwnKeys ? first_head + step / tiles : own_head;

    // Whether any of the warp's rows and the others see each other, and whether not all do.
    bool works, masked;
    if constexpr (kOwnKeys) {
      const int oldest = first_own + warp_row + mask.first_key,
                newest = min(oldest + 16 * kM, own_rows + mask.first_key) - 1;
      const int from = mask.first_query + first,
                to_place = mask.first_query + min(first + kOther, other_rows) - 1;
      works = to_place >= oldest && from - newest < mask.window && newest >= oldest;
      masked = mask.starts != nullptr || from < newest || to_place - oldest >= mask.window ||
               first + kOther > other_rows;
    } else {
      works = of_warp.any(first, first + kOther);
      masked = !of_warp.all(first, first + kOther);
    }
    if (!works) continue;

    float p[kM][kN][4];
    clear(p);
    multiply_transposed<kM, kOther, kD>(p, own1, warp_row, other1);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = 8 * n + 2 * t + i % 2;
          float lse = 0.0f;
          if constexpr (kOwnKeys)
            lse = numbers_of<kD>(other1, column)->lse * kLog2E;
          else
            lse = lses[m][i / 2];
          p[m][n][i] = exp2_fast(p[m][n][i] * scale - lse);
        }
    // After the loop, which then has no branches: exponentials are computed in parallel.
    if (masked) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = 8 * n + 2 * t + i % 2;
            const int row = first_own + warp_row + 16 * m + i / 2 * 8 + g;
            bool seen;
            if constexpr (kOwnKeys) {
              const int query = first + column;
              const int start = mask.starts == nullptr ? 0 : numbers_of<kD>(other1, column)->start;
              seen = query < other_rows && seen_keys(mask, in.sizes.keys, query, start).has(row);
            } else {
              seen = spans[m][i / 2].has(first + column);
            }
            if (!seen) p[m][n][i] = 0.0f;
          }
    }

    float ds[kM][kN][4];
    if constexpr (Shape::kFirst) {
      clear(ds);
      multiply_transposed<kM, kOther, kDv>(ds, own2, warp_row, other2);
    }
    // Applies dropout to dout v^T, and to p for dv.
    if (mask.dropout.threshold != 0) {
      DropoutRun dropout(mask.dropout, b, kReads);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            const int own = first_own + warp_row + 16 * m + i / 2 * 8 + g;
            const int other = first + 8 * n + 2 * t + i % 2;
            const int query = kOwnKeys ? other : own, key = kOwnKeys ? own : other;
            const std::int64_t element =
                (head * mask.tokens + mask.first_query + query) * mask.tokens + mask.first_key +
                key;
            const float factor = dropout(element, 1.0f);
            if constexpr (Shape::kFirst) {
              float delta;
              if constexpr (kOwnKeys)
                delta = numbers_of<kD>(other1, 8 * n + 2 * t + i % 2)->delta;
              else
                delta = deltas[m][i / 2];
              ds[m][n][i] = p[m][n][i] * (factor == 0.0f ? -delta : ds[m][n][i] * factor - delta);
            }
            if constexpr (Shape::kSecond) p[m][n][i] = factor == 0.0f ? 0.0f : p[m][n][i] * factor;
          }
    } else if constexpr (Shape::kFirst) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float delta;
            if constexpr (kOwnKeys)
              delta = numbers_of<kD>(other1, 8 * n + 2 * t + i % 2)->delta;
            else
              delta = deltas[m][i / 2];
            ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta);
          }
    }
    if constexpr (Shape::kSecond) multiply_registers<kM, kOther, kDv>(grad2, p, other2);
    if constexpr (Shape::kFirst) multiply_registers<kM, kOther, kD>(grad1, ds, other1);
  }

  const auto store = [&](const auto& sums, const Heads<bf16>& narrow, const Heads<float>& wide,
                         float* parts, int columns, float factor) {
    store_sums(sums, gradient_rows(block, in.sizes, to.add, narrow, wide, parts, columns),
               first_own + warp_row, own_rows, columns, factor);
  };
  if constexpr (kPass == Pass::dq) {
    store(grad1, to.dq, to.dq_f32, nullptr, in.sizes.dims, mask.scale);
  } else {
    if constexpr (Shape::kFirst)
      store(grad1, to.dk, to.dk_f32, to.dk_parts, in.sizes.dims, mask.scale);
    if constexpr (Shape::kSecond)
      store(grad2, to.dv, to.dv_f32, to.dv_parts, in.sizes.value_dims, 1.0f);
  }
}

template <Pass kPass, int kD, int kDv>
void run_pass(cudaStream_t stream, const BackwardInputs<bf16>& all,
              const AttentionGradients<bf16>& to) {
  using Shape = BackwardShape<kPass, kD, kDv>;
  const AttentionSizes& sizes = all.in.sizes;
  const BlockPlan plan = backward_plan<Shape::kOwnKeys, bf16>(sizes, Shape::kOwn, to.splits);
  launch(reads_values(all.in.mask) ? backward_kernel<kPass, kD, kDv, true>
                                   : backward_kernel<kPass, kD, kDv, false>,
         {.blocks = blocks_of(plan),
          .threads = kThreads,
          .shared_bytes = Shape::shared_bytes()},
         stream, all, to, plan);
}

}  // namespace

template <>
void attention_backward_tiles(cudaStream_t stream, const AttentionInputs<bf16>& in,
                              Heads<const bf16> dout, RowValues<const float> lse,
                              const float* delta, const AttentionGradients<bf16>& gradients) {
  const BackwardInputs<bf16> all{in, dout, lse, delta};
  with_head_sizes(in.sizes.dims, in.sizes.value_dims, [&]<int kD, int kDv>() {
    run_pass<Pass::dq, kD, kDv>(stream, all, gradients);
    if constexpr (kD + kDv <= 320) {
      run_pass<Pass::dk_dv, kD, kDv>(stream, all, gradients);
    } else {
      run_pass<Pass::dk, kD, kDv>(stream, all, gradients);
      run_pass<Pass::dv, kD, kDv>(stream, all, gradients);
    }
  });
}

}  // namespace sortie::trainer::ops::cuda
