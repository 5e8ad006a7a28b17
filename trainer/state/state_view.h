// The state of a run as checkpoints see it: tensors by global name, and the places of this rank's
// parts of them in its flat buffers. The only code through which a run's checkpoints access those
// buffers.
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

/// A part of a tensor that is contiguous in a flat buffer.
struct StatePiece {
  /// The parameter's name after "model.", "optimizer.m." or "optimizer.v."; a member's own momentum
  /// has momentum_prefix().
  std::string name;
  Dims shape;                           // of the whole tensor
  Piece piece;                          // the part of it
  StorageType type = StorageType::f32;  // of its elements: f32; bf16 for moments that are bf16
  /// The elements: in host memory, or in separate device memory, which only the functions below can
  /// access.
  std::span<std::byte> bytes;
  DeviceMemory* memory = nullptr;  // that device memory; null: host memory
  const Parameter* parameter = nullptr;
  bool moment = false;    // an optimizer moment, which only trained parameters have
  bool repeated = false;  // a lower rank of the tensor-parallel group has it too
  bool alone = false;     // no other replica has it: of a sharded store, or a member's momentum

  std::size_t element_bytes() const { return storage_bytes(type); }
};

/// The prefix of the names of a member's own momentum: "optimizer.momentum.3."
std::string momentum_prefix(int member);

enum class TiedCopies : bool { leave_out, include };

/// Views bytes that hold f32 values as floats.
std::span<float> floats_in(std::span<std::byte> bytes);

/// Copies the values of all pieces that are in device memory to the host. `to` has one span for
/// each piece, of the piece's size. All copies run at once.
void read_values(const std::vector<StatePiece>& pieces,
                 const std::vector<std::span<std::byte>>& to);
/// Writes elements, in the piece's type, to the piece from element `first` on.
void write_values(const StatePiece& piece, std::int64_t first, std::span<const std::byte> from);
/// Fills a piece, some elements at a time: make(part, bytes) must fill `bytes` with the part `part`
/// of the tensor, in the piece's type. In host memory it is called once and writes in place.
Result<> fill_values(
    const StatePiece& piece,
    const std::function<Result<>(const Piece& part, std::span<std::byte> bytes)>& make);
/// Sends the piece's values from `root` to all ranks of the group, which have the same piece.
void broadcast_values(Communicator& group, const StatePiece& piece, int root);

/// Sends the piece's values to a rank of the group, which receives them into a piece of the same
/// size, in whatever memory each of the two is.
void send_values(Communicator& group, const StatePiece& piece, int to);
void receive_values(Communicator& group, const StatePiece& piece, int from);

/// Access to the state in place, while this object exists. The constructor waits for all streams.
class StateView {
 public:
  explicit StateView(ParameterStore& store);

  /// Returns all pieces of this rank, in the order of the buffers and of the parameters'
  /// declaration; of a sharded store only its own share of what is trained (the rest of the weights
  /// belongs to other replicas). A parameter that repeats another rank's has that parameter's name;
  /// TiedCopies::leave_out leaves it out, because that rank saves it.
  std::vector<StatePiece> pieces(TiedCopies tied) const;

 private:
  ParameterStore& store_;
  const OpenMemory open_;
};

/// Number of elements of all pieces, and of their bytes.
std::int64_t elements_of(const std::vector<StatePiece>& pieces);
std::uint64_t bytes_of(const std::vector<StatePiece>& pieces);

/// Returns one of `count` shares of the pieces, equal in bytes to within an element: what a rank
/// writes if `count` ranks hold the same pieces. All shares together are all pieces.
std::vector<StatePiece> share_of(const std::vector<StatePiece>& pieces, std::size_t index,
                                 std::size_t count);

}  // namespace sortie::trainer
