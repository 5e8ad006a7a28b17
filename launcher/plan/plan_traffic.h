// What the ranks of a training send each other in a step, and which links carry it; what a pipeline
// waits, and the memory of its stages.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Payload of all ranks in a step, in bytes, with one precision.
struct StepTraffic {
  std::string precision;
  double within_hosts = 0.0, between_hosts = 0.0;
  /// The host that sends most to others, and how much; empty where nothing is sent.
  std::string busiest_host{};
  double busiest_bytes = 0.0;
};

// All of a plan with a model of several ranks; nothing of one whose trainer did not say what ranks
// send.

/// By precision, of groups that `counts` takes by name (empty: of all). A rank sends to all others
/// of a group the same part each, or to one of them.
std::vector<StepTraffic> step_traffic(
    const LaunchPlan& plan, const std::function<bool(const std::string& group)>& counts = {});

/// The lines of a plan for people: what is sent, and of a pipeline its bubble and the memory of a
/// rank of each stage.
std::string traffic_text(const LaunchPlan& plan);
/// {"sent_bytes": {"bf16": {"within_hosts": ..., "between_hosts": ..., "busiest_host": ...,
/// "busiest_host_bytes": ...}}, "bubble": ..., "stage_memory_bytes": [{"bf16": ...}]}
nlohmann::ordered_json traffic_json(const LaunchPlan& plan);

}  // namespace sortie::launcher
