// What the ranks of a training send each other per step, and over which links; the bubble of a
// pipeline, and the memory of its stages.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Payload bytes of all ranks per step, with one precision.
struct StepTraffic {
  std::string precision;
  double within_hosts = 0.0, between_hosts = 0.0;
  /// The host that sends most to other hosts, and how much; empty if none sends anything.
  std::string busiest_host{};
  double busiest_bytes = 0.0;
};

// All functions need a plan with a model on several ranks. They return nothing if the trainer did
// not report what ranks send.

/// Returns the traffic per precision, of the groups whose name `counts` accepts (empty: all). A
/// rank sends equal parts to all others of a group, or everything to one of them.
std::vector<StepTraffic> step_traffic(
    const LaunchPlan& plan, const std::function<bool(const std::string& group)>& counts = {});

/// Lines of the plan's text: traffic, and for a pipeline its bubble and the memory per rank of each
/// stage.
std::string traffic_text(const LaunchPlan& plan);
/// {"sent_bytes": {"bf16": {"within_hosts": ..., "between_hosts": ..., "busiest_host": ...,
/// "busiest_host_bytes": ...}}, "bubble": ..., "stage_memory_bytes": [{"bf16": ...}]}
nlohmann::ordered_json traffic_json(const LaunchPlan& plan);

}  // namespace sortie::launcher
