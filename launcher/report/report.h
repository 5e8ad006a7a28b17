// `sortie report`: a run's view as text and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/view/run_view.h"
#include "launcher/view/training_text.h"

namespace sortie::launcher {

/// What the exit code says: a rank's own, or one of Sortie's table; empty while there is none.
std::string exit_meaning(const RunView& run);

/// `training` says how the run is called and whether it lives.
std::string report_text(const RunView& run, const TrainingRun& training);
/// Schema sortie/report/1.
nlohmann::ordered_json report_json(const RunView& run, const TrainingRun& training);

}  // namespace sortie::launcher
