// The layout of a training whose model spans several ranks: which rank holds which part, and which
// groups span hosts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

// All functions need a plan with a mesh.

/// Stages as rows and replicas as columns, each with its ranks and hosts, and the number of groups
/// of each kind that span hosts.
std::string layout_text(const LaunchPlan& plan);
nlohmann::ordered_json layout_json(const LaunchPlan& plan);

/// Warns about tensor-parallel groups that span hosts: they communicate in every layer.
std::vector<std::string> layout_warnings(const LaunchPlan& plan);

}  // namespace sortie::launcher
