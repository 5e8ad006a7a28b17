// Whether the ranks of a host have more compute threads than cores.
#pragma once

#include <string>

#include "trainer/loop/rank_context.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// "h01: 4 compute threads on 2 cores; ..." for hosts whose ranks together compute with more
/// threads than there are CPUs that they may run on; empty when there are none. A collective of all
/// ranks; the same on each.
std::string crowded_hosts(Communicator& communicator, const RankContext& rank);

}  // namespace sortie::trainer
