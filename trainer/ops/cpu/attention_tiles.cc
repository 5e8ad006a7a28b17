#include "trainer/ops/cpu/attention_tiles.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer::ops {

Head head_of(const Tensor& x, std::int64_t b, std::int64_t h) {
  const std::size_t bytes = dtype_bytes(x.dtype());
  return {static_cast<std::byte*>(x.raw()) +
              static_cast<std::size_t>(b * x.stride(0) + h * x.stride(2)) * bytes,
          x.stride(1), bytes};
}

Tiles::Tiles(const AttentionMask& mask, std::int64_t queries, std::int64_t keys)
    : mask_(mask),
      part_(mask.part.value_or(AttentionPart{.tokens = queries})),
      queries_(queries),
      keys_(keys),
      ahead_(part_.first_query - part_.first_key),
      tiling_(mask.part ? kLongTiling : attention_tiling(queries, mask.window)) {}

std::int64_t Tiles::first_key(std::int64_t b, std::int64_t t) const {
  std::int64_t first =
      mask_.window > 0 ? std::max<std::int64_t>(0, t + ahead_ - mask_.window + 1) : 0;
  if (mask_.document_start.defined()) {
    const Tensor& starts = mask_.document_start;
    const std::int64_t start = starts.data<std::int32_t>()[b * starts.stride(0) + t];
    SORTIE_CHECK(start >= 0 && start <= part_.first_query + t, "document of token {} starts at {}",
                 part_.first_query + t, start);
    first = std::max(first, start - part_.first_key);
  }
  return first;
}

Tile Tiles::tile(std::int64_t block, std::int64_t column) const {
  const std::int64_t begin = block * tiling_.rows;
  const std::int64_t end = std::min(begin + tiling_.rows, queries_);
  std::int64_t first =
      mask_.window > 0 ? std::max<std::int64_t>(0, begin + ahead_ - mask_.window + 1) : 0;
  if (one_tile()) return {begin, end - begin, first, end - first};
  constexpr std::int64_t kUnit = 64;
  first = std::max(first / kUnit * kUnit, column * tiling_.keys);
  const std::int64_t last = std::min({(column + 1) * tiling_.keys, end + ahead_, keys_});
  return {begin, end - begin, first, std::max<std::int64_t>(0, last - first)};
}

bool Tiles::any_seen(const Tile& tile, std::int64_t b) const {
  if (tile.keys == 0) return false;
  if (!mask_.document_start.defined()) return true;
  for (std::int64_t t = tile.begin; t < tile.begin + tile.rows; ++t)
    if (seen(tile, b, t).seen > 0) return true;
  return false;
}

Seen Tiles::seen(const Tile& tile, std::int64_t b, std::int64_t t) const {
  const std::int64_t from = std::max<std::int64_t>(0, first_key(b, t) - tile.first);
  const std::int64_t to = std::min(t + ahead_ + 1 - tile.first, tile.keys);
  if (from >= to) return {0, 0};
  return {from, to - from};
}

ProductTable::ProductTable(ExecutionContext& context, const Tiles& tiles, DType dtype,
                           std::int64_t dims, std::int64_t value_dims,
                           const AttentionStrides& strides, bool backward) {
  const bool add_up = !tiles.one_tile();
  const DType result = add_up ? DType::f32 : dtype;
  const auto make = [&](const Tile& tile) {
    const std::int64_t rows = tile.rows, keys = tile.keys, line = tiles.line(tile);
    const auto find = [&](std::int64_t m, std::int64_t n, std::int64_t k, DType output,
                          std::int64_t a_row, std::int64_t a_col, std::int64_t b_row,
                          std::int64_t b_col, std::int64_t c_row, bool accumulate) {
      auto product = find_matmul(context, {m, n, k, dtype, output, a_row, a_col, b_row, b_col,
                                           c_row, false, accumulate, true});
      scratch_bytes_ = std::max(scratch_bytes_, product->scratch_bytes());
      return product;
    };
    TileProducts p;
    p.scores = find(rows, keys, dims, DType::f32, strides.q, 1, 1, strides.k, line, false);
    if (!backward) {
      p.values = find(rows, value_dims, keys, result, line, 1, strides.v, 1, strides.out, add_up);
      return p;
    }
    p.dprobabilities =
        find(rows, keys, value_dims, DType::f32, strides.dout, 1, 1, strides.v, line, false);
    p.dq = find(rows, dims, keys, result, line, 1, strides.k, 1, strides.dq, add_up);
    p.dk = find(keys, dims, rows, DType::f32, 1, line, strides.q, 1, strides.dk, true);
    p.dv = find(keys, value_dims, rows, DType::f32, 1, line, strides.dout, 1, strides.dv, true);
    return p;
  };
  for (std::int64_t block = 0; block < tiles.blocks(); ++block)
    for (std::int64_t column = 0; column < tiles.columns(); ++column) {
      const Tile tile = tiles.tile(block, column);
      if (tile.keys == 0 || products_.contains({tile.rows, tile.keys})) continue;
      products_.emplace(std::pair(tile.rows, tile.keys), make(tile));
    }
}

ThreadMemory::ThreadMemory(ExecutionContext& context, std::span<const std::size_t> part_bytes) {
  constexpr std::size_t kAlignment = 64;
  const auto rounded = [](std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::size_t all = 0;
  for (const std::size_t bytes : part_bytes) all += rounded(bytes);
  memory_ = context.allocator().allocate(all);
  auto* next = static_cast<std::byte*>(memory_.get());
  for (const std::size_t bytes : part_bytes) {
    parts_.push_back(next);
    next += rounded(bytes);
  }
}

}  // namespace sortie::trainer::ops
