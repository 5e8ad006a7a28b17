// Which part of attention a block computes. Included by attention's .cu files.
#pragma once

#include <algorithm>

#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/device.h"

namespace sortie::trainer::ops::cuda {

/// How blocks, all on grid.x, divide tiles of own rows, heads, samples, and splits of a head's
/// work. Some heads of samples are processed together: few enough that the L2 cache holds the other
/// rows that their blocks read, but enough to occupy the GPU. Among these, blocks with the most
/// work run first.
struct BlockPlan {
  int tiles, heads, group;  // group: query heads per key head
  std::int64_t batch;
  unsigned together;  // heads of samples that are processed together
  int splits = 1;
};
struct BlockPlace {
  int split, head, tile;  // tile: in the order of the blocks
  std::int64_t sample;
};
template <bool kSplits>
__device__ __forceinline__ BlockPlace place_of_block(const BlockPlan& plan) {
  const auto heads = static_cast<unsigned>(plan.heads);
  const unsigned units = heads * static_cast<unsigned>(plan.batch);
  const unsigned blocks_of_unit =
      static_cast<unsigned>(plan.tiles) * static_cast<unsigned>(plan.splits);
  unsigned rest = blockIdx.x, first = 0;
  if (plan.together < units) {
    const unsigned blocks = plan.together * blocks_of_unit, chunk = rest / blocks;
    rest -= chunk * blocks;
    first = chunk * plan.together;
  }
  BlockPlace place{};
  if constexpr (kSplits) {
    place.split = static_cast<int>(rest % static_cast<unsigned>(plan.splits));
    rest /= static_cast<unsigned>(plan.splits);
  }
  const unsigned count = min(plan.together, units - first);
  place.tile = static_cast<int>(rest / count);
  const unsigned unit = first + rest % count;
  place.sample = unit / heads;
  place.head = static_cast<int>(unit % heads);
  return place;
}
/// `rows`: of a tile; `other_bytes`: bytes that the blocks of a head read besides their own rows.
inline BlockPlan block_plan(const AttentionSizes& sizes, std::int64_t own_rows, int rows, int heads,
                            std::int64_t other_bytes, int splits) {
  constexpr std::int64_t kShareOfCache = 12 << 20, kLeastBlocks = 1024;
  BlockPlan plan{.tiles = static_cast<int>((own_rows + rows - 1) / rows),
                 .heads = heads,
                 .group = sizes.heads / sizes.key_heads,
                 .batch = sizes.batch,
                 .together = 1,
                 .splits = splits};
  const std::int64_t in_cache = kShareOfCache / std::max<std::int64_t>(other_bytes, 1),
                     enough = kLeastBlocks / std::max(plan.tiles * splits, 1) + 1;
  plan.together = static_cast<unsigned>(
      std::clamp<std::int64_t>(std::max(in_cache, enough), 1, heads * sizes.batch));
  return plan;
}
inline unsigned blocks_of(const BlockPlan& plan) {
  return static_cast<unsigned>(std::int64_t{plan.tiles} * plan.heads * plan.batch * plan.splits);
}
/// Bytes of rows in two operands, for one head.
template <class T>
std::int64_t bytes_of_rows(const AttentionSizes& sizes, std::int64_t rows) {
  return rows * (sizes.dims + sizes.value_dims) * static_cast<std::int64_t>(sizeof(T));
}

}  // namespace sortie::trainer::ops::cuda
