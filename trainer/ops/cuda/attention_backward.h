// Shared by the kernels of attention's backward pass: the work of a block. A block computes the
// gradients of its own rows, queries or keys, and iterates over the other rows, keys or queries.
// Included by attention's .cu files.
#pragma once

#include "trainer/ops/cuda/attention_tiles.h"
#include "trainer/ops/cuda/block_order.h"

namespace sortie::trainer::ops::cuda {

template <class T>
struct BackwardInputs {
  AttentionInputs<T> in;
  Heads<const T> dout;
  RowValues<const float> lse;
  const float* delta;
};

template <bool kOwnKeys>
struct BackwardBlock : BlockPlace {
  int splits;

  /// Blocks with the most work run first: the first keys, and the last queries.
  __device__ __forceinline__ explicit BackwardBlock(const BlockPlan& plan)
      : BlockPlace(place_of_block<kOwnKeys>(plan)), splits(plan.splits) {
    if (!kOwnKeys) tile = plan.tiles - 1 - tile;
  }
  /// Query heads per split, of the `group` query heads that read own keys. A block processes its
  /// heads one after another.
  __device__ __forceinline__ int share(int group) const { return (group + splits - 1) / splits; }
  __device__ __forceinline__ int first_query_head(int group) const {
    return kOwnKeys ? head * group + split * share(group) : head;
  }
  __device__ __forceinline__ int query_heads(int group) const {
    return kOwnKeys ? max(min(share(group), group - split * share(group)), 0) : 1;
  }
};

/// `own`: rows of a block.
template <bool kOwnKeys, class T>
BlockPlan backward_plan(const AttentionSizes& sizes, int own, int splits) {
  const int group = sizes.heads / sizes.key_heads;
  if (kOwnKeys)
    return block_plan(sizes, sizes.keys, own, sizes.key_heads,
                      bytes_of_rows<T>(sizes, sizes.queries) * group, splits);
  return block_plan(sizes, sizes.queries, own, sizes.heads,
                    bytes_of_rows<T>(sizes, sizes.keys) / group, 1);
}

/// Sets [begin, end) to the range of the queries of sample `b` that see a key of [first, past).
__device__ __forceinline__ void queries_of_keys(const AttentionSizes& sizes, const KeyMask& mask,
                                                std::int64_t b, int first, int past,
                                                SeenByAll* scratch, int& begin, int& end) {
  begin = max(mask.first_key + first - mask.first_query, 0);
  const std::int64_t last = std::int64_t{mask.first_key} + past - 1 + mask.window;  // exclusive
  const std::int64_t queries = last - mask.first_query;
  end = queries < sizes.queries ? max(static_cast<int>(queries), 0) : sizes.queries;
  if (mask.starts == nullptr) return;
  SeenByAll mine;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x))
    if (mask.starts[b * mask.starts_stride + i] < mask.first_key + past) mine.end = i + 1;
  end = min(end, over_block(over_warp(mine), scratch).end);
}

/// Destination of a block's sums of own rows: in dq, dk or dv.
template <class T>
struct GradientRows {
  T* narrow = nullptr;
  float* wide = nullptr;  // added to if `add`; a split's own sums are overwritten
  std::int64_t stride = 0;
  bool add = false, in_pieces = false;

  __device__ __forceinline__ void store(int row, int column, int columns, float low,
                                        float high) const {
    if (wide == nullptr) {
      store_pair(narrow + row * stride, column, columns, in_pieces, low, high);
      return;
    }
    float* to = wide + row * stride;
    if (add && column < columns) low += to[column];
    if (add && column + 1 < columns) high += to[column + 1];
    store_pair(to, column, columns, in_pieces, low, high);
  }
};
template <bool kOwnKeys, class T>
__device__ __forceinline__ GradientRows<T> gradient_rows(const BackwardBlock<kOwnKeys>& block,
                                                         const AttentionSizes& sizes, bool add,
                                                         const Heads<T>& narrow,
                                                         const Heads<float>& wide, float* parts,
                                                         int columns) {
  const std::int64_t b = block.sample;
  if (block.splits > 1)
    return {nullptr,
            parts + ((block.split * sizes.batch + b) * sizes.keys * sizes.key_heads + block.head) *
                        columns,
            std::int64_t{sizes.key_heads} * columns, false, columns % 2 == 0};
  if (add)
    return {nullptr, wide.data + b * wide.sample + block.head * wide.head, wide.token, true,
            wide.in_pieces};
  return {narrow.data + b * narrow.sample + block.head * narrow.head, nullptr, narrow.token, false,
          narrow.in_pieces};
}

}  // namespace sortie::trainer::ops::cuda
