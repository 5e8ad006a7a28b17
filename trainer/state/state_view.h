// The state of a run as checkpoints know it: tensors by global name, and where this rank's parts of
// them lie in its flat buffers. The one place that reaches into those buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/piece.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/communicator.h"
#include "trainer/tensor/device_memory.h"

namespace sortie::trainer {

/// A part of a tensor that lies densely in a flat buffer.
struct StatePiece {
  /// "model." and the parameter's, or "optimizer.m.", "optimizer.v."; a member's own momentum:
  /// momentum_prefix().
  std::string name;
  Dims shape;                           // of the whole tensor
  Piece piece;                          // of it
  StorageType type = StorageType::f32;  // of its elements: f32, or bf16 of moments that are kept so
  /// Where they lie: memory of the host, or of a device that is apart, where the functions below
  /// alone can go.
  std::span<std::byte> bytes;
  DeviceMemory* memory = nullptr;  // that device's
  const Parameter* parameter = nullptr;
  bool moment = false;    // of what is trained alone
  bool repeated = false;  // a lower rank of the tensor-parallel group has it too
  bool alone = false;     // no other replica has it: of a sharded store, or a member's momentum

  std::size_t element_bytes() const { return storage_bytes(type); }
};

/// Of the names of a member's own momentum: "optimizer.momentum.3."
std::string momentum_prefix(int member);

enum class TiedCopies : bool { leave_out, include };

/// Bytes that hold f32.
std::span<float> floats_in(std::span<std::byte> bytes);

/// The values of all pieces that lie on a device, each to its place in `to`, which has one of the
/// piece's size for every piece. All copies are under way at once.
void read_values(const std::vector<StatePiece>& pieces,
                 const std::vector<std::span<std::byte>>& to);
/// Elements of the piece, in its type, from `first` on.
void write_values(const StatePiece& piece, std::int64_t first, std::span<const std::byte> from);
/// Has the values of a piece made, some at a time: make(part, bytes) fills what `part` is of the
/// tensor, in the piece's type. On the host they are made where they lie.
Result<> fill_values(
    const StatePiece& piece,
    const std::function<Result<>(const Piece& part, std::span<std::byte> bytes)>& make);
/// From `root` to all ranks of the group, which have the piece alike.
void broadcast_values(Communicator& group, const StatePiece& piece, int root);

/// The state where it lies, while this object lives. Waits for all streams first.
class StateView {
 public:
  explicit StateView(ParameterStore& store);

  /// All that this rank has, of a sharded store its own share of what is trained (the rest of the
  /// weights is that of other replicas), in the order of the buffers and of the parameters'
  /// declaration. A parameter that repeats another rank's has the name of that one; to save it is
  /// that rank's part.
  std::vector<StatePiece> pieces(TiedCopies tied) const;

 private:
  ParameterStore& store_;
  const OpenMemory open_;
};

/// Elements of all pieces, and their bytes.
std::int64_t elements_of(const std::vector<StatePiece>& pieces);
std::uint64_t bytes_of(const std::vector<StatePiece>& pieces);

/// One of `count` shares of the pieces, equal by bytes to within an element: what a rank writes
/// where `count` ranks hold the same pieces. All shares together are all pieces.
std::vector<StatePiece> share_of(const std::vector<StatePiece>& pieces, std::size_t index,
                                 std::size_t count);

}  // namespace sortie::trainer
