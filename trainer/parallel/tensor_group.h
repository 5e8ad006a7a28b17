// TensorGroup: the ranks that share the work of each layer, as the layers see them.
#pragma once

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct TensorGroup {
  Communicator& communicator;
  /// What lies between the shared products is shared too: each rank has the rows of its own tokens,
  /// which are so many in the order of the ranks (sequence parallelism).
  bool sequence = false;

  int rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }

  /// An exchange beside which others compute; null = none. Makes progress in poll().
  mutable CollectiveHandle* under_way = nullptr;
  void poll() const {
    if (under_way != nullptr) (void)under_way->poll();
  }
};

/// Whether the rows between shared products are a part of all.
inline bool shares_rows(const TensorGroup* group) {
  return group != nullptr && group->sequence;
}
/// One rank's part of a number that they divide.
inline std::int64_t part_of(std::int64_t count, const TensorGroup* group) {
  return group == nullptr ? count : count / group->size();
}

}  // namespace sortie::trainer
