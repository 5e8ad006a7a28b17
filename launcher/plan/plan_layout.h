// The layout of a training whose model is held by several ranks together: who is where, and what
// crosses hosts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

// All of a plan that has a mesh.

/// Stages as rows and replicas as columns, each with its ranks and their hosts, and how many groups
/// of each kind are on more than one host.
std::string layout_text(const LaunchPlan& plan);
nlohmann::ordered_json layout_json(const LaunchPlan& plan);

/// Tensor-parallel groups on more than one host: they exchange in every layer.
std::vector<std::string> layout_warnings(const LaunchPlan& plan);

}  // namespace sortie::launcher
