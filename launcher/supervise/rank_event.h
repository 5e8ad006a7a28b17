// Events of ranks, checked where they come in: what passes has the shape that console, trackers,
// journal and reports rely on. A rank may run any program and send any line.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/result.h"

namespace sortie::launcher {

/// An event's JSON object. Its `type` is a text; fields that Sortie reads itself (`step`, `loss`,
/// `first_run` ...) are of their type or null, which is left out. Any other field and any other
/// type of event pass as they are. ErrorCode::data: why the event is refused.
Result<nlohmann::json> check_rank_event(std::string_view line);

}  // namespace sortie::launcher
