// Batch ramp-up (rule T6): the global batch grows from a small one while the first samples pass.
#pragma once

#include <vector>

#include "common/config/validate.h"

namespace sortie::config {

/// What is wrong with the three ramp-up keys by themselves.
std::vector<Violation> check_rampup(const TopologyConfig& topology);

/// Fills in the ramp-up of a plan whose sizes are known, or adds why it does not fit them.
void resolve_rampup(const TopologyConfig& topology, BatchOutcome& outcome);

}  // namespace sortie::config
