// Snapshot: memory for a copy of the state, so that training continues while the copy is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "trainer/state/state_view.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

/// The memory is kept for the life of the object: new pages would cost more than the copy itself.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Allocates the memory and all of its pages. If `device` has separate memory, pins it, so that
  /// the device copies into it at full speed. ErrorCode::unsupported if this host does not have
  /// enough for `ranks_of_host` ranks that do the same.
  Result<> allocate(std::uint64_t bytes, std::int64_t ranks_of_host, Device device);
  std::uint64_t bytes() const { return memory_.size(); }

  /// Copies the values of the pieces, with the compute threads or the device that has them; each
  /// piece then refers to its copy. They must fit.
  void take(ExecutionContext& context, std::vector<StatePiece>& pieces);

 private:
  std::span<std::byte> memory_;
  DeviceMemory* pinned_by_ = nullptr;
};

/// No-op if all pieces are in host memory. Otherwise copies all pieces, to `snapshot` if they fit,
/// else to `other`, which must be empty and gets the memory.
Result<> copy_to_host(ExecutionContext& context, std::vector<StatePiece>& pieces,
                      Snapshot& snapshot, Snapshot& other);

}  // namespace sortie::trainer
