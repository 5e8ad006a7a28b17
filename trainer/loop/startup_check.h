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
  std::string advice;  // what to do where it differs
};

/// Compares `agreements` (same list on every rank) over all ranks. The same Error on every rank:
/// "build differs: 3f2a.. on h[01-03], 99ab.. on h04; <advice>".
Result<> check_agreement(Communicator& communicator, const RankContext& context,
                         const std::vector<Agreement>& agreements);

/// What failed on any rank is an error on every rank, so that none waits for one that has ended:
/// "rank 3 (h04): ...", of the first that failed. Collective.
Result<> share_failure(Communicator& communicator, const RankContext& context,
                       const Result<>& mine);

/// SHA-256 (hex) of the running program, so that "the same path" is known to be the same program.
Result<std::string> build_hash();

}  // namespace sortie::trainer
