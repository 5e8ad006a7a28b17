// ExpertGroup: the ranks among which the routed experts of a mixture are divided (expert
// parallelism), as the layers see them.
#pragma once

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct ExpertGroup {
  /// In the order of the experts: rank r has the r-th of size() equal parts of them.
  Communicator& communicator;
  /// The ranks of a tensor-parallel group have the same rows. If each expert is cut over fewer
  /// ranks than that group has, each rank sends only part `slice` of `slices` of these rows to the
  /// experts.
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

  /// Exchange of rows in flight during computation; nullptr if none. poll() makes progress on it.
  mutable CollectiveHandle* under_way = nullptr;
  void poll() const {
    if (under_way != nullptr) (void)under_way->poll();
  }
};

}  // namespace sortie::trainer
