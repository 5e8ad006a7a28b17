// The order in which blocks process attention: each part once, and heads that share data first.
#include "trainer/ops/cuda/block_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "tests/support/cuda/grid.h"

namespace sortie::trainer::ops::cuda {
namespace {

template <bool kSplits>
std::vector<BlockPlace> places_of(const BlockPlan& plan) {
  std::vector<BlockPlace> places(blocks_of(plan));
  emulated_cuda::run_grid(
      {blocks_of(plan)}, {1}, 0, [&] { places[blockIdx.x] = place_of_block<kSplits>(plan); }, 1);
  return places;
}

void check_order(const BlockPlan& plan, const std::vector<BlockPlace>& places) {
  std::set<std::tuple<int, int, int, std::int64_t>> all;
  for (const BlockPlace& at : places) {
    all.emplace(at.split, at.head, at.tile, at.sample);
    CHECK((at.split >= 0 && at.split < plan.splits && at.head >= 0 && at.head < plan.heads));
    CHECK((at.tile >= 0 && at.tile < plan.tiles && at.sample >= 0 && at.sample < plan.batch));
  }
  CHECK(all.size() == places.size());
  // Blocks of heads that are processed together are consecutive, with their tiles in order.
  const std::size_t chunk =
      static_cast<std::size_t>(plan.together) * static_cast<unsigned>(plan.tiles * plan.splits);
  for (std::size_t begin = 0; begin < places.size(); begin += chunk) {
    std::set<std::pair<std::int64_t, int>> heads;
    const std::size_t end = std::min(begin + chunk, places.size());
    for (std::size_t i = begin; i < end; ++i) {
      heads.emplace(places[i].sample, places[i].head);
      CHECK((i == begin || places[i].tile >= places[i - 1].tile));
    }
    CHECK(heads.size() <= plan.together);
  }
}

}  // namespace

TEST_CASE("blocks of attention: every part is one block's, those of some heads after each other") {
  const BlockPlan plan{.tiles = 3, .heads = 5, .group = 1, .batch = 4, .together = 1};
  for (const unsigned together : {1u, 2u, 7u, 19u, 20u, 100u})
    for (const int splits : {1, 3}) {
      BlockPlan some = plan;
      some.together = std::min(together, 20u);
      some.splits = splits;
      CAPTURE(together);
      CAPTURE(splits);
      check_order(some, places_of<true>(some));
      if (splits == 1) check_order(some, places_of<false>(some));
    }
}

TEST_CASE("blocks of attention: as many heads go together as the cache holds, or the GPU needs") {
  const auto plan_of = [](std::int64_t batch, int tokens, int heads, int key_heads, int dims) {
    const AttentionSizes sizes{batch, tokens, tokens, heads, key_heads, dims, dims};
    return block_plan(sizes, tokens, 64, heads, bytes_of_rows<bf16>(sizes, tokens), 1);
  };
  // 256 KiB of keys and values per head: 48 are 12 MiB, but 65 are 1040 blocks.
  CHECK(plan_of(32, 1024, 12, 12, 64).together == 65);
  CHECK(plan_of(1, 1024, 12, 12, 64).together == 12);
  // 4 MiB per head, of 128 blocks.
  CHECK(plan_of(2, 8192, 32, 32, 128).together == 9);
  CHECK(plan_of(2, 65536, 32, 32, 128).together == 2);
}

}  // namespace sortie::trainer::ops::cuda
