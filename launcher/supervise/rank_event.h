// Checks the events of ranks on receipt. An accepted event has the form that console, trackers,
// journal and reports rely on. A rank may run any program and send any line.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/result.h"

namespace sortie::launcher {

/// Parses and checks one event. `type` must be a string. In event types that Sortie knows, the
/// fields that it reads (`step`, `loss`, `first_run` ...) must have their type, and those that an
/// event of the type needs must exist; null fields and numbers beyond 1e24 are removed.
/// Other fields and other event types are not checked. ErrorCode::data with the reason if the event
/// is refused.
Result<nlohmann::json> check_rank_event(std::string_view line);

}  // namespace sortie::launcher
