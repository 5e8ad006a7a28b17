// Replicas of a data-parallel run hold the same weights and optimizer states, bit for bit. Memory
// that flips a bit, or a library that is not deterministic, breaks that without a word.
#pragma once

#include "common/base/result.h"
#include "trainer/loop/rank_context.h"
#include "trainer/nn/parameter.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Compares a hash of all states over the ranks; collective. ErrorCode::diverged on every rank,
/// naming the ranks and hosts that differ from most of the others.
Result<> check_replicas(Communicator& communicator, const RankContext& rank, ParameterStore& store,
                        std::int64_t step);

/// The same before the first step, where fresh weights were computed by each rank for itself.
Result<> check_initial_state(Communicator& communicator, const RankContext& rank,
                             ParameterStore& store);

}  // namespace sortie::trainer
