// Snapshot: memory for a copy of the state, so that training goes on while the copy is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "trainer/state/state_view.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

/// The memory stays for the life of the object: pages that are new would cost more than the copy.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Takes the memory, in pages that are there. ErrorCode::unsupported where this host has less
  /// than it needs for `ranks_of_host` ranks that do the same. The device copies into it at its full
  /// speed.
  Result<> allocate(std::uint64_t bytes, std::int64_t ranks_of_host, Device device);
  std::uint64_t bytes() const { return memory_.size(); }

  /// Copies the values of the pieces, on the compute threads or by the device that has them; each
  /// then views its copy. They must fit.
  void take(ExecutionContext& context, std::vector<StatePiece>& pieces);

 private:
  std::span<std::byte> memory_;
  DeviceMemory* pinned_by_ = nullptr;
};

/// Pieces of the host stay as they are. Those of a device are copied to the snapshot, where they fit,
/// else to `other`, which is empty and gets the memory.
Result<> copy_to_host(ExecutionContext& context, std::vector<StatePiece>& pieces, Snapshot& snapshot,
                      Snapshot& other);

}  // namespace sortie::trainer
