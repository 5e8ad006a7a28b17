// Batch ramp-up (rule T6): the global batch size grows from a small one during the first samples.
#pragma once

#include <vector>

#include "common/config/validate.h"

namespace sortie::config {

/// Violations that concern only the three ramp-up keys.
std::vector<Violation> check_rampup(const TopologyConfig& topology);

/// Fills in the ramp-up of a plan whose sizes are known, or adds a violation if it does not fit.
void resolve_rampup(const TopologyConfig& topology, BatchOutcome& outcome);

}  // namespace sortie::config
