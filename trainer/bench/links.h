// The links between the ranks of a group: every pair, and all in a ring.
#pragma once

#include <vector>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct LinkRow {
  int from = 0, to = 0;  // ranks of the group; of a pair the lower one is `from`
  double us = 0;         // of 8 bytes one way (half a round trip); 0 in a ring
  double gbit_s = 0;     // each way at the same time; in a ring from `from` to `to`
};

struct LinkReport {
  std::vector<LinkRow> pairs, ring;
  /// What a byte that a rank sends in an all-reduce costs it of the time in which it computes and
  /// only looks in between, seconds; of the rank that it costs most.
  double beside = 0;
};

/// Pairs in rounds: in a round every rank is in one pair at most, and all pairs of it at the same
/// time. A round lists (lower, higher).
std::vector<std::vector<std::pair<int, int>>> pair_rounds(int ranks);

/// Collective. `bytes` each way for each measurement, of which the fastest of `repeats` counts. The
/// same report on every rank.
LinkReport bench_links(Communicator& group, std::int64_t bytes, int repeats = 1);

}  // namespace sortie::trainer
