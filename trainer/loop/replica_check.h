// Checks that the replicas of a data-parallel run hold the same weights and optimizer states, bit
// for bit. Memory that flips a bit, or a library that is not deterministic, breaks that silently.
// With a sharded optimizer, its state and the f32 masters of bf16 weights have no replica: then
// only the weights that are multiplied, and what else all replicas have whole, are compared. If
// weights are sharded too, only what the model writes is compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/loop/rank_context.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/layout.h"

namespace sortie::trainer {

/// Ranks whose state differs from that of the majority. The same on every rank.
struct ReplicaDifference {
  struct Rank {
    std::int64_t rank = 0;
    std::string host;
  };
  std::vector<Rank> ranks;  // all of them if there is no majority; empty = all states are equal
  bool majority = true;
  /// "rank 2 (host) from the other ranks"; empty if all are equal.
  std::string text;
};

/// Compares a hash of all states over the ranks; collective.
ReplicaDifference find_difference(const Layout& layout, const RankContext& rank,
                                  ParameterStore& store);

/// ErrorCode::diverged for replicas that differ after a step.
Error difference_error(const ReplicaDifference& difference, std::int64_t step);

/// Compares the states before the first step, when each rank has computed its own initial weights,
/// and after a rollback. ErrorCode::diverged if they differ. Collective.
Result<> check_initial_state(const Layout& layout, const RankContext& rank, ParameterStore& store);

}  // namespace sortie::trainer
