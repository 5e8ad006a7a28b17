// Ranks must agree before the first step: same program, config and data on every host.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/loop/rank_context.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// One thing that must be equal on all ranks.
struct Agreement {
  std::string what;    // "build", "config", "data"
  std::string value;   // hash or text; short
  std::string advice;  // what to do if it differs
};

/// Compares `agreements` (same list on every rank) over all ranks. Returns the same error on every
/// rank: "build differs: 3f2a.. on h[01-03], 99ab.. on h04; <advice>". Collective.
Result<> check_agreement(Communicator& communicator, const RankContext& context,
                         const std::vector<Agreement>& agreements);

/// Returns, on every rank, the error of the first rank that failed, so that no rank waits for one
/// that has ended: "rank 3 (h04): ...". Collective.
Result<> share_failure(Communicator& communicator, const RankContext& context,
                       const Result<>& mine);

/// SHA-256 (hex) of the running program, to verify that the same path is the same program.
Result<std::string> build_hash();

}  // namespace sortie::trainer
