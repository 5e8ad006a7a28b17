// Finds hosts whose ranks have more compute threads than cores.
#pragma once

#include <string>

#include "trainer/loop/rank_context.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Returns a warning about hosts whose ranks together have more compute threads than CPUs that they
/// may run on: "...: h01: 4 compute threads on 2 cores, ..."; empty if there are none. Collective;
/// the same on all ranks.
std::string crowded_hosts(Communicator& communicator, const RankContext& rank);

}  // namespace sortie::trainer
