// Shared by the forward and the backward pass of attention: heads as matrices, the split of the
// scores into tiles (tiling.h), the products of a tile, and a thread's scratch memory. Included by
// files of this folder only.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trainer/ops/attention.h"
#include "trainer/ops/cpu/matmul.h"
#include "trainer/ops/cpu/tiling.h"

namespace sortie::trainer::ops {

/// A head of a [B, T, H, D] view: first element and row stride.
struct Head {
  std::byte* data;
  std::int64_t stride;
  std::size_t bytes;  // of an element
  std::byte* row(std::int64_t t) const {
    return data + static_cast<std::size_t>(t * stride) * bytes;
  }
};
Head head_of(const Tensor& x, std::int64_t b, std::int64_t h);

/// Query rows [begin, begin + rows) against keys [first, first + keys).
struct Tile {
  std::int64_t begin, rows, first, keys;
};

/// The keys of a tile that a row sees: `seen` keys after the first `unseen` ones; none if seen is
/// 0.
struct Seen {
  std::int64_t unseen, seen;
};

/// The tiles of a head. Their widths take few values, however long the sequence is: a partial tile
/// ends at the diagonal of its rows, and a window's first tile begins at a multiple of 64.
class Tiles {
 public:
  Tiles(const AttentionMask& mask, std::int64_t queries, std::int64_t keys);

  const AttentionTiling& tiling() const { return tiling_; }
  bool one_tile() const { return tiling_.one_tile; }
  std::int64_t blocks() const { return (queries_ + tiling_.rows - 1) / tiling_.rows; }
  /// Columns of tiles; 1 if a block has one tile.
  std::int64_t columns() const {
    return one_tile() ? 1 : (keys_ + tiling_.keys - 1) / tiling_.keys;
  }
  /// The tile of a block of rows in a column of keys; its `keys` is 0 if there is none.
  Tile tile(std::int64_t block, std::int64_t column) const;
  /// True if any row of the tile sees any key of it. Documents can leave a tile empty.
  bool any_seen(const Tile& tile, std::int64_t b) const;
  /// The keys of the tile that row `t` of sample `b` sees.
  Seen seen(const Tile& tile, std::int64_t b, std::int64_t t) const;
  /// Elements between two rows of the tile's scores.
  std::int64_t line(const Tile& tile) const {
    return attention_line(one_tile() ? tile.keys : tiling_.keys);
  }
  std::int64_t most_scores() const { return tiling_.rows * attention_line(tiling_.keys); }
  /// Element number, for dropout, of the score of row `t` of a head and key number `key` of the
  /// tile.
  std::int64_t score_number(const Tile& tile, std::int64_t head, std::int64_t t,
                            std::int64_t key) const {
    return (head * part_.tokens + part_.first_query + t) * part_.tokens + part_.first_key +
           tile.first + key;
  }

 private:
  std::int64_t first_key(std::int64_t b, std::int64_t t) const;

  const AttentionMask& mask_;
  const AttentionPart part_;
  const std::int64_t queries_, keys_;
  const std::int64_t ahead_;  // query t is at the position of key t + ahead_
  AttentionTiling tiling_;
};

/// The products of a tile. Those of the other pass are nullptr.
struct TileProducts {
  using Product = std::shared_ptr<const Matmul>;
  Product scores;          // Q . K^T, f32
  Product values;          // P . V
  Product dprobabilities;  // dO . V^T, f32
  Product dq;              // dS . K
  Product dk, dv;          // dS^T . Q and P^T . dO, added to f32 sums
  std::vector<Product> all() const { return {scores, values, dprobabilities, dq, dk, dv}; }
};

/// Row strides of the operands and results.
struct AttentionStrides {
  std::int64_t q, k, v, out;
  std::int64_t dout = 0, dq = 0, dk = 0, dv = 0;  // of a backward pass
};

/// The products of all shapes of tiles, kept alive while in use. If a block has one tile, out and
/// dq are written in the input's type; otherwise they are added to in f32. dk and dv are always
/// added to in f32.
class ProductTable {
 public:
  ProductTable(ExecutionContext& context, const Tiles& tiles, DType dtype, std::int64_t dims,
               std::int64_t value_dims, const AttentionStrides& strides, bool backward);
  const TileProducts& of(const Tile& tile) const { return products_.at({tile.rows, tile.keys}); }
  std::size_t scratch_bytes() const { return scratch_bytes_; }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, TileProducts> products_;
  std::size_t scratch_bytes_ = 0;
};

/// A thread's scratch memory, in aligned parts.
class ThreadMemory {
 public:
  ThreadMemory(ExecutionContext& context, std::span<const std::size_t> part_bytes);
  template <class T = void>
  T* part(std::size_t index) const {
    return static_cast<T*>(parts_[index]);
  }

 private:
  std::shared_ptr<void> memory_;
  std::vector<void*> parts_;
};

}  // namespace sortie::trainer::ops
