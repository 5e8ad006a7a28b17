// Topology of a job that continues with fewer ranks than configured: the global batch stays the
// same, and each rank accumulates gradients over more micro-batches. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "common/config/schema.h"

namespace sortie::launcher {

/// Returns [topology] for `ranks` ranks of a job that was configured for `configured` ranks, both
/// positive. The global batch and the micro-batch stay as configured; gradient accumulation is
/// adapted. Returns nullopt if the global batch is no whole number of micro-batches per rank. A job
/// of a program other than sortie-train has no batch: any number of ranks is valid, and the result
/// is job.topology.
std::optional<config::TopologyConfig> topology_for(const config::JobConfig& job,
                                                   std::int64_t configured, std::int64_t ranks);

}  // namespace sortie::launcher
