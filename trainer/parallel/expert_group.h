// ExpertGroup: the ranks that share out the routed experts of a mixture, as the layers see them.
#pragma once

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct ExpertGroup {
  /// In the order of the experts: rank r has the r-th of size() equal parts of them.
  Communicator& communicator;
  /// Ranks of a tensor-parallel group that have an expert each to themselves have the same rows:
  /// each sends the `slice`-th of `slices` parts of these to the experts.
  int slice = 0, slices = 1;

  int rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }

  struct Rows {
    std::int64_t first = 0, count = 0;
  };
  Rows own_rows(std::int64_t rows) const {
    const std::int64_t first = rows * slice / slices;
    return {first, rows * (slice + 1) / slices - first};
  }

  /// Rows that travel while others are computed; null = none do. Makes progress in poll().
  mutable CollectiveHandle* under_way = nullptr;
  void poll() const {
    if (under_way != nullptr) (void)under_way->poll();
  }
};

}  // namespace sortie::trainer
