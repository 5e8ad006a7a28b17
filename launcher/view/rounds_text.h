// Formats the rounds of a run over several sites.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/view/run_view.h"

namespace sortie::launcher {

/// "41, of 2 sites, 12s ago; exchange 1.2 s, wait 0.3 s on average; 3 called off". Empty if no
/// round was committed and there is no trouble. `now`: seconds since 1970.
std::string rounds_text(const RunView& view, double now);

/// Returns a line per site: its state, and how it ended. Empty without sites.
std::string sites_text(const RunView& view);

/// {"round", "commits", "sites", "called_off", "without_a_site", "steps_in_vain", "exchange_s",
/// "wait_s"}.
nlohmann::ordered_json rounds_json(const RunView& view);

}  // namespace sortie::launcher
