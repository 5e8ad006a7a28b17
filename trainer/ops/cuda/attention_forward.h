// Shared by the kernels of attention's forward pass: the online softmax of a row, and the output of
// a finished row. Included by attention's .cu files.
#pragma once

#include "trainer/ops/cuda/attention_tiles.h"
#include "trainer/ops/cuda/block_order.h"
#include "trainer/ops/cuda/dropout_run.h"

namespace sortie::trainer::ops::cuda {

/// `rows`: of a block. `pack`: query heads per tile; if above 1, the plan's heads are key heads.
inline BlockPlan forward_plan(const AttentionSizes& sizes, int rows, int pack, int splits) {
  const int heads = sizes.heads / pack, group = heads / sizes.key_heads;
  return block_plan(sizes, std::int64_t{sizes.queries} * pack, rows, heads,
                    bytes_of_rows<bf16>(sizes, sizes.keys) / group, splits);
}

/// Online softmax of a row over the keys so far: the largest score, and this thread's part of the
/// sum of exp(score - top).
struct RunningSoftmax {
  float top = -kInfinity, total = 0.0f;

  /// Converts scores to probabilities relative to `top`: those of row `half` of this thread, of
  /// keys from `first_key` on. If `masked`, only keys in `span` are seen. Returns the factor by
  /// which earlier probabilities must be multiplied.
  template <int kN>
  __device__ __forceinline__ float add(float (&s)[kN][4], int half, int first_key, bool masked,
                                       KeySpan span, float scale) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    if (masked) {
#pragma unroll
      for (int i = 0; i < kN; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (!span.has(first_key + 8 * i + 2 * t + j)) s[i][2 * half + j] = -kInfinity;
    }
    // Two independent maxima and sums.
    float mosts[2] = {-kInfinity, -kInfinity};
#pragma unroll
    for (int i = 0; i < kN; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) mosts[j] = fmaxf(mosts[j], s[i][2 * half + j]);
    float most = fmaxf(mosts[0], mosts[1]);
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    most = fmaxf(most, top);
    const float base = most == -kInfinity ? 0.0f : most;
    const float keep = exp2_fast((top - base) * scale);
    top = most;
    // The maximum's product is subtracted from those of all scores, so its rounding error cancels
    // while it is small. If it is large, the maximum is subtracted from the scores instead.
    constexpr float kLargest = 8192.0f;
    float product = base * scale;
    if (__ballot_sync(kAllLanes, fabsf(product) > kLargest) != 0) {
      product = 0.0f;
#pragma unroll
      for (int i = 0; i < kN; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) s[i][2 * half + j] -= base;
    }
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kN; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = s[i][2 * half + j];
        score = exp2_fast(score * scale - product);
        sums[j] += score;
      }
    total = total * keep + (sums[0] + sums[1]);
    return keep;
  }
  /// The sum over all threads of the row.
  __device__ __forceinline__ float whole_total() const {
    float sum = total;
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    return sum;
  }
};

/// Applies dropout to the probabilities of row `half` of this thread: query row `row` of the call,
/// keys from `first_key` on.
template <bool kReads, int kN>
__device__ __forceinline__ void drop_probabilities(float (&s)[kN][4], int half, const KeyMask& mask,
                                                   std::int64_t b, int head, int row,
                                                   int first_key) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  DropoutRun dropout(mask.dropout, b, kReads);
  const std::int64_t element = (head * mask.tokens + mask.first_query + row) * mask.tokens +
                               mask.first_key + first_key + 2 * t;
#pragma unroll
  for (int i = 0; i < kN; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float& p = s[i][2 * half + j];
      p = dropout(element + 8 * i + j, p);
    }
}

template <int kN>
__device__ __forceinline__ void multiply_row(float (&sums)[kN][4], int half, float factor) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    sums[i][2 * half] *= factor;
    sums[i][2 * half + 1] *= factor;
  }
}

/// A finished row of the forward pass: out = its sums times `factor`, plus `keep` times the
/// previous `out`. Writes nothing if default-constructed: a row outside of the call, or a merged
/// row that saw no key.
template <class T>
struct FinishedRow {
  T* out = nullptr;
  float *out_f32 = nullptr, *lse_at = nullptr;
  float factor = 0.0f, keep = 0.0f, lse = -kInfinity;
  bool in_pieces = false;

  __device__ __forceinline__ void store_lse() const {
    if (lse_at != nullptr) *lse_at = lse;
  }
  __device__ __forceinline__ void store(int column, int columns, float low, float high) const {
    low *= factor;
    high *= factor;
    if (out_f32 == nullptr) {
      if (out != nullptr) store_pair(out, column, columns, in_pieces, low, high);
      return;
    }
    if (keep != 0.0f) {
      if (column < columns) low += keep * out_f32[column];
      if (column + 1 < columns) high += keep * out_f32[column + 1];
    }
    store_pair(out_f32, column, columns, in_pieces, low, high);
  }
};
/// `total` is the sum of exp(score - top) over the keys, 0 if the row saw none. All threads of a
/// row must call this before one of them stores.
template <class T>
__device__ __forceinline__ FinishedRow<T> finish_row(const AttentionOut<T>& to, int split,
                                                     std::int64_t b, int head, int token,
                                                     float total, float top) {
  FinishedRow<T> row;
  if (to.lse.data != nullptr)
    row.lse_at =
        to.lse.data + split * to.lse_split + b * to.lse.sample + head * to.lse.head + token;
  if (total != 0.0f) {
    row.lse = top + logf(total);
    row.factor = 1.0f / total;
  }
  const auto place = [&](const auto& out) {
    row.in_pieces = out.in_pieces;
    return out.data + b * out.sample + token * out.token + head * out.head;
  };
  if (to.result == AttentionResult::store) {
    row.out = place(to.out);
    return row;
  }
  if (to.result == AttentionResult::merge) {
    if (total == 0.0f) return {};
    const float before = *row.lse_at, here = row.lse;
    if (before != -kInfinity) {
      const float most = fmaxf(before, here);
      row.lse = most + logf(expf(before - most) + expf(here - most));
      row.keep = expf(before - row.lse);
      row.factor *= expf(here - row.lse);
    }
  }
  row.out_f32 = place(to.out_f32) + split * to.out_split;
  return row;
}

}  // namespace sortie::trainer::ops::cuda
