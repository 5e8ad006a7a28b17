// The attempts of a run as text and JSON, for `status` and `report`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/view/run_view.h"

namespace sortie::launcher {

/// A few lines for each attempt: when it ran and where, why it ended, what was decided. Empty for a
/// run that was never restarted and decided nothing. Printable.
std::string attempts_text(const RunView& view);

/// An array with an object for each attempt.
nlohmann::ordered_json attempts_json(const RunView& view);

}  // namespace sortie::launcher
