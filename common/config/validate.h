// Cross-field rules over a whole JobConfig. Pure: no file and no host is touched.
#pragma once

#include <string>
#include <vector>

#include "common/config/schema.h"

namespace sortie::config {

/// A broken rule: the keys to blame (first one gives the position) and the message
/// "why; what to do" with the exact numbers.
struct Violation {
  std::vector<std::string> keys;
  std::string message;
};

/// Every broken rule, empty when the job is valid. Does not know the world size: that is
/// resolve_batch's business.
std::vector<Violation> validate(const JobConfig& job);

/// Batch arithmetic once the world size is known: global = micro * accumulation * data parallel,
/// exactly.
struct BatchPlan {
  std::int64_t data_parallel_size, micro_batch_size, gradient_accumulation_steps, global_batch_size;
};
struct BatchOutcome {
  BatchPlan plan;
  std::vector<Violation> violations;  // plan is meaningful only when empty
};
BatchOutcome resolve_batch(const TopologyConfig& topology, std::int64_t world_size);

}  // namespace sortie::config
