// HealthView as text and JSON, for `status` and `report`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/health/health_view.h"

namespace sortie::launcher {

/// Rows below a host of `status`: its incidents that are at least to be watched, the worst first,
/// with the command for a person. Empty for a host without.
std::string health_rows(const HealthView& view, const std::string& host);

/// Incidents of all hosts that explain failures or ask for a person, with their times: for the
/// story of a run.
std::vector<std::pair<double, std::string>> health_times(const HealthView& view);

/// What `report` says at its end: incidents by host, the commands, what was not watched where.
std::string health_report(const HealthView& view);

/// [{"class", "action", "what", "device", "gpu", "at", "command", "findings"}], in order of times.
nlohmann::ordered_json incidents_json(const HealthView& view, const std::string& host);

}  // namespace sortie::launcher
