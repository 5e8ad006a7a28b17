// DeMo: decoupled momentum (Peng, Quesnelle and Kingma 2024). Each site has a momentum of its own;
// of every step it sends the largest coefficients of the momentum's cosine transform, which leave
// the momentum, and all sites move each weight by the sign of their mean.
//
//   m <- decay m + rate g;  s = the top_k largest of DCT(m), by tile;  m <- m - IDCT(s)
//   q = IDCT(for each coefficient, the mean over the sites that sent it)
//   weights <- weights - rate weight_decay weights - rate sign(q)
//
// What leaves the momentum is what arrives: coefficients as 8-bit floats (E4M3, wire.h) stand for
// s, and what that rounds away stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "trainer/outer/cosine_transform.h"

namespace sortie::trainer::outer {

/// A parameter in the flat vector: rows x columns from `offset` on; a vector is one row.
struct DemoTensor {
  std::size_t offset = 0, rows = 1, columns = 1;
};

struct DemoSettings {
  double decay = 0.999;
  std::int64_t top_k = 32;  // coefficients of a tile that are sent; at least 1
};

/// Side of the tiles along a dimension: its largest divisor up to 64.
std::size_t tile_side(std::size_t dimension);

/// Indices as 12 bits each, two in three bytes, the first in the lower bits; an even number.
void pack_indices(std::span<const std::uint16_t> indices, std::span<std::byte> out);
void unpack_indices(std::span<const std::byte> bytes, std::span<std::uint16_t> out);

/// The same result to the bit on all sites from the same messages. Not thread-safe.
class Demo {
 public:
  /// The tensors cover the vector without gaps, in their order.
  Demo(std::vector<DemoTensor> tensors, const DemoSettings& settings);
  Demo(Demo&&) = default;
  Demo& operator=(Demo&&) = default;

  /// Of one site's step: for each tile 1.5 bytes per index, for each tensor its values as E4M3 with
  /// a scale per tile; 2.5 bytes per coefficient and one per tile.
  std::size_t message_bytes() const { return message_bytes_; }
  std::size_t elements() const { return momentum_.size(); }

  /// Takes a step's gradient in and writes what this site sends of it. An exchange that is repeated
  /// sends the same message again. False: a gradient is not finite, or becomes so; the momentum is
  /// as before.
  [[nodiscard]] bool compress(std::span<const float> gradient, float rate,
                              std::span<std::byte> message);
  /// The update, from the messages of all sites that take part, in one order on all of them. False:
  /// a message is none; the weights are as before.
  [[nodiscard]] bool apply(std::span<const std::span<const std::byte>> messages, float rate,
                           float weight_decay, std::span<float> weights) const;

  /// Part of a checkpoint.
  std::span<const float> momentum() const { return momentum_; }
  void restore(std::span<const float> momentum);

 private:
  struct Part {
    DemoTensor tensor;
    const CosineTransform* transform;  // in transforms_
    std::size_t tiles = 0;             // in order of rows, then columns
    std::size_t kept = 0;              // coefficients of a tile
    std::size_t slots = 0;             // the same, rounded up to an even number
    std::size_t indices = 0;           // where they begin in a message
    std::size_t values = 0;
    std::size_t index_bytes() const { return tiles * slots / 2 * 3; }
    std::size_t value_bytes() const { return tiles * (slots + 1); }
    /// First element of a tile in the vector.
    std::size_t begin_of(std::size_t tile) const {
      const std::size_t across = tensor.columns / transform->columns();
      return tensor.offset + tile / across * transform->rows() * tensor.columns +
             tile % across * transform->columns();
    }
  };
  /// All coefficients of a tensor in a message, `kept` of each tile, ascending; false: it is none.
  static bool read(const Part& part, std::span<const std::byte> message,
                   std::vector<Coefficient>& coefficients);

  DemoSettings settings_;
  std::map<std::pair<std::size_t, std::size_t>, CosineTransform> transforms_;
  std::vector<Part> parts_;
  std::size_t message_bytes_ = 0;
  std::vector<float> momentum_, next_;
};

}  // namespace sortie::trainer::outer
