// The state of a run as checkpoints know it: tensors by global name, and where this rank's parts of
// them lie in its flat buffers. The one place that reaches into those buffers.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/piece.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer {

/// A part of a tensor that lies densely in a flat buffer.
struct StatePiece {
  std::string name;  // "model." and the parameter's, or "optimizer.m.", "optimizer.v."
  Dims shape;        // of the whole tensor
  Piece piece;       // of it
  std::span<float> values;
  const Parameter* parameter = nullptr;
  bool moment = false;    // of what is trained alone
  bool repeated = false;  // a lower rank of the tensor-parallel group has it too
  bool alone = false;     // of a sharded store: no other replica has it
};

enum class TiedCopies : bool { leave_out, include };

/// The state as host memory, while this object lives; what it gives points into that.
class StateView {
 public:
  explicit StateView(ParameterStore& store);

  /// All that this rank has, of a sharded store its own share of what is trained (the rest of the
  /// weights is that of other replicas), in the order of the buffers and of the parameters'
  /// declaration. A parameter that repeats another rank's has the name of that one; to save it is
  /// that rank's part.
  std::vector<StatePiece> pieces(TiedCopies tied) const;
  /// The flat buffers as a whole, for ranks that get them from another one. Not of a sharded store.
  std::vector<std::span<std::byte>> buffers() const;

 private:
  ParameterStore& store_;
  ops::HostAccess<float> master_, moment1_, moment2_;
};

/// Elements of all pieces.
std::int64_t elements_of(const std::vector<StatePiece>& pieces);

/// One of `count` shares of the pieces, equal by elements to within one: what a rank writes where
/// `count` ranks hold the same pieces. All shares together are all pieces.
std::vector<StatePiece> share_of(const std::vector<StatePiece>& pieces, std::size_t index,
                                 std::size_t count);

}  // namespace sortie::trainer
