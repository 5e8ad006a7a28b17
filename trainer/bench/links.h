// Measures the links between the ranks of a group: every pair, and all ranks in a ring.
#pragma once

#include <vector>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct LinkRow {
  int from = 0, to = 0;  // ranks of the group; in a pair, `from` is the lower one
  double us = 0;         // for 8 bytes one way (half a round trip); 0 in a ring
  double gbit_s = 0;     // each way at the same time; in a ring, from `from` to `to`
};

struct LinkReport {
  std::vector<LinkRow> pairs, ring;
  /// Cost of an all-reduce that runs concurrently with computation, if the rank only polls it
  /// between pieces of work: seconds of lost compute time per byte that the rank sends. Maximum
  /// over the ranks.
  double beside = 0;
};

/// Distributes all pairs of ranks over rounds. In a round each rank is in at most one pair, so that
/// the pairs of a round run at the same time. A pair is (lower, higher).
std::vector<std::vector<std::pair<int, int>>> pair_rounds(int ranks);

/// Collective call. Each measurement transfers `bytes` each way; the fastest of `repeats` counts.
/// Returns the same report on every rank.
LinkReport bench_links(Communicator& group, std::int64_t bytes, int repeats = 1);

}  // namespace sortie::trainer
