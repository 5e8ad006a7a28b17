// DeMo: decoupled momentum (Peng, Quesnelle and Kingma 2024), as one member of a group applies it
// to one matrix. Each member has its own momentum. In every step it sends the largest coefficients
// of the momentum's cosine transform and removes them from the momentum. All members then move each
// weight by the sign of the mean of the sent coefficients:
//
//   m <- decay m + rate g ;  s = the top_k largest of DCT(m), block by block ;  m <- m - IDCT(s)
//   q = IDCT(for each coefficient, the mean over the members that sent it)
//   w <- w - lr weight_decay w - lr sign(q)
//
// The momentum loses exactly what is received: s is first rounded to the 8 bits of the message, and
// the rounding error stays in the momentum. DCT is the orthonormal DCT-II along both sides of a
// block.
#pragma once

#include <algorithm>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// A matrix [rows, columns] in blocks whose sides are at most `chunk`. Each side is split into as
/// few parts as that allows, whose lengths differ by at most one. If the parts are equal, the
/// blocks are those of the published method (the largest divisor up to `chunk`). A side without
/// such a divisor, like the 50257 rows of a vocabulary, still has parts of about that length. A
/// vector is one row.
struct DemoBlocks {
  static constexpr std::int64_t kLongestSide = 64;  // 12 bits identify a coefficient of a block

  std::int64_t rows = 1, columns = 1;
  std::int64_t chunk = kLongestSide;
  std::int64_t top_k = 32;  // coefficients sent per block; all if it has fewer

  std::int64_t down() const { return (rows + chunk - 1) / chunk; }
  std::int64_t across() const { return (columns + chunk - 1) / chunk; }
  std::int64_t count() const { return down() * across(); }  // numbered row by row

  /// Start of part `index` of a side that is split into `parts`; index = parts is the end of the
  /// last one.
  static std::int64_t begin_of(std::int64_t side, std::int64_t parts, std::int64_t index) {
    return side / parts * index + std::min(index, side % parts);
  }

  /// Room for coefficients in a block's message: an even number, because two indices take three
  /// bytes.
  std::int64_t slots() const {
    const std::int64_t down = (rows + this->down() - 1) / this->down();
    const std::int64_t across = (columns + this->across() - 1) / this->across();
    return (std::min(top_k, down * across) + 1) / 2 * 2;
  }
  /// A block's message: the upper 16 bits of an f32 scale, little-endian; `slots` ascending indices
  /// (frequency along the rows x block columns + frequency along the columns) of 12 bits, the first
  /// of two in the lower bits; `slots` values as signed bytes. A coefficient is scale x value; a
  /// value of 0 means that no coefficient is sent.
  std::int64_t block_bytes() const { return 2 + slots() / 2 * 3 + slots(); }
  std::int64_t message_bytes() const { return count() * block_bytes(); }
};

/// Both ops are no-ops if the gate f32 [kGateValues] (update_gate.h) is closed. It and the learning
/// rate lr f32 [1] are on the device.
struct DemoSend {
  float decay;
  Tensor lr, gate;  // rate = lr x the gate's factor of gradients
};
/// The first line above: adds `grad` to `momentum`, removes what is sent from it, and writes that
/// to `message` u8 [blocks.message_bytes()]. `grad` and `momentum` are f32, dense, rows x columns.
/// A momentum that is not finite sends NaN.
void demo_send(ExecutionContext& context, const DemoSend& step, const DemoBlocks& blocks,
               const Tensor& grad, Tensor& momentum, Tensor& message);

struct DemoMove {
  Tensor lr;
  float weight_decay;
  Tensor gate;
};
/// The other lines: updates w from the messages of all members, u8 [members,
/// blocks.message_bytes()], added in this order. If `compute` is defined, also compute = bf16(w).
/// NaN in a message makes the block's weights NaN.
void demo_move(ExecutionContext& context, const DemoMove& step, const DemoBlocks& blocks,
               const Tensor& messages, Tensor& w, Tensor& compute);

}  // namespace sortie::trainer::ops
