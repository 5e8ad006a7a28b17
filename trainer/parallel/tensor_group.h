// TensorGroup: the ranks that share the work of each layer (tensor parallelism), as the layers see
// them.
#pragma once

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct TensorGroup {
  Communicator& communicator;
  /// Sequence parallelism: between the shared products, too, each rank has only the rows of its own
  /// tokens, an equal part of all, in rank order.
  bool sequence = false;

  int rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }

  /// Exchange in flight during computation; nullptr if none. poll() makes progress on it.
  mutable CollectiveHandle* under_way = nullptr;
  void poll() const {
    if (under_way != nullptr) (void)under_way->poll();
  }
};

/// Whether a rank has only a part of the rows between shared products (sequence parallelism).
inline bool shares_rows(const TensorGroup* group) {
  return group != nullptr && group->sequence;
}
/// One rank's part of `count`, a multiple of the group's size.
inline std::int64_t part_of(std::int64_t count, const TensorGroup* group) {
  return group == nullptr ? count : count / group->size();
}

}  // namespace sortie::trainer
