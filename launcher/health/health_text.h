// HealthView as text and JSON, for `status` and `report`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/health/health_view.h"

namespace sortie::launcher {

/// Rows below a host of `status`: its incidents that require attention, the worst first, with the
/// command for the user. Empty if there are none.
std::string health_rows(const HealthView& view, const std::string& host);

/// Incidents of all hosts that explain failures or require an action of the user, with their times:
/// for the history of a run.
std::vector<std::pair<double, std::string>> health_times(const HealthView& view);

/// Health section of `report`: incidents by host, commands, and what was monitored on which hosts.
std::string health_report(const HealthView& view);

/// [{"class", "action", "what", "device", "gpu", "at", "command", "findings"}], ordered by time.
nlohmann::ordered_json incidents_json(const HealthView& view, const std::string& host);

}  // namespace sortie::launcher
