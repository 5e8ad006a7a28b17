// A job that goes on with fewer ranks than it was configured for: the same global batch in fewer,
// longer steps of each rank. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "common/config/schema.h"

namespace sortie::launcher {

/// [topology] for `ranks` ranks of a job that was configured for `configured` ranks (both > 0): the
/// global batch and the micro-batch as they were, gradient accumulation to fit. Nothing where no
/// whole number of micro-batches does. A job of another program than sortie-train has no batch:
/// any number of ranks will do, and the answer is job.topology.
std::optional<config::TopologyConfig> topology_for(const config::JobConfig& job,
                                                   std::int64_t configured, std::int64_t ranks);

}  // namespace sortie::launcher
