// Formats the attempts of a run as text and JSON, for `status`, `report` and `attach`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/view/run_view.h"

namespace sortie::launcher {

/// Returns a few lines per attempt: when and where it ran, why it ended, and the decision after it.
/// Empty for a run with a single attempt and no decision. Printable.
std::string attempts_text(const RunView& view);

/// Returns the message about the end of an attempt that another one follows: why it failed, unless
/// the restart was planned, and the decision after it.
std::string attempt_end_text(const AttemptView& attempt);

/// Returns an array with an object per attempt.
nlohmann::ordered_json attempts_json(const RunView& view);

}  // namespace sortie::launcher
