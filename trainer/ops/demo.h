// DeMo: decoupled momentum (Peng, Quesnelle and Kingma 2024), what one member does to one matrix.
// Each member has a momentum of its own; of every step it sends the largest coefficients of the
// momentum's cosine transform, which leave the momentum, and all members move each weight by the
// sign of the mean of what all have sent:
//
//   m <- decay m + rate g ;  s = the top_k largest of DCT(m), block by block ;  m <- m - IDCT(s)
//   q = IDCT(for each coefficient, the mean over the members that sent it)
//   w <- w - lr weight_decay w - lr sign(q)
//
// What leaves the momentum is what arrives: s is rounded to the wire's 8 bits first, and what that
// takes away stays. DCT is the orthonormal DCT-II along both sides of a block.
#pragma once

#include <algorithm>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// A matrix [rows, columns] in blocks whose sides are at most `chunk`: each side is cut into as few
/// parts as that allows, of lengths that differ by one at most. Where the parts are equal these are
/// the blocks of the published method (the largest divisor up to `chunk`); a side without such a
/// divisor, like the 50257 rows of a vocabulary, has parts that are about as long all the same.
/// A vector is one row.
struct DemoBlocks {
  static constexpr std::int64_t kLongestSide = 64;  // 12 bits tell a coefficient of a block

  std::int64_t rows = 1, columns = 1;
  std::int64_t chunk = kLongestSide;
  std::int64_t top_k = 32;  // coefficients of a block that are sent; all where it has fewer

  std::int64_t down() const { return (rows + chunk - 1) / chunk; }
  std::int64_t across() const { return (columns + chunk - 1) / chunk; }
  std::int64_t count() const { return down() * across(); }  // row by row

  /// Part `index` of `parts` of a side begins there; the last one ends at index = parts.
  static std::int64_t begin_of(std::int64_t side, std::int64_t parts, std::int64_t index) {
    return side / parts * index + std::min(index, side % parts);
  }

  /// Room for coefficients in a block's message: an even number, as two indices take three bytes.
  std::int64_t slots() const {
    const std::int64_t down = (rows + this->down() - 1) / this->down();
    const std::int64_t across = (columns + this->across() - 1) / this->across();
    return (std::min(top_k, down * across) + 1) / 2 * 2;
  }
  /// A block's message: the upper 16 bits of an f32 scale, little-endian; `slots` indices
  /// (frequency along the rows x block columns + frequency along the columns), ascending, of 12
  /// bits, the first of two in the lower ones; `slots` values of a signed byte. The coefficient is
  /// scale x value; a value of 0 is none.
  std::int64_t block_bytes() const { return 2 + slots() / 2 * 3 + slots(); }
  std::int64_t message_bytes() const { return count() * block_bytes(); }
};

struct DemoSend {
  float decay, rate;
};
/// The first line above: `message` u8 [blocks.message_bytes()] = what this member sends of
/// `momentum`, which has taken in `grad` and loses that. Both f32, dense, of rows x columns. A
/// momentum that is not finite sends NaN.
void demo_send(ExecutionContext& context, const DemoSend& step, const DemoBlocks& blocks,
               const Tensor& grad, Tensor& momentum, Tensor& message);

struct DemoMove {
  float lr, weight_decay;
};
/// The other lines, from the messages of all members, u8 [members, blocks.message_bytes()], whose
/// order is that of the sums; and where `compute` is defined, compute = bf16(w). NaN in a message
/// makes NaN of the block's weights.
void demo_move(ExecutionContext& context, const DemoMove& step, const DemoBlocks& blocks,
               const Tensor& messages, Tensor& w, Tensor& compute);

}  // namespace sortie::trainer::ops
