// `sortie report`: a run's view as text and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/view/run_view.h"
#include "launcher/view/training_text.h"

namespace sortie::launcher {

/// Returns the meaning of the exit code: a rank's own code, or an entry of Sortie's table. Empty if
/// the run has no exit code yet.
std::string exit_meaning(const RunView& run);

/// Whether the run failed with an exit code that a rank itself gave: by exit or MPI_Abort.
bool has_code_of_rank(const RunView& run);

/// `training` has the name of the run and whether its supervisor is alive.
std::string report_text(const RunView& run, const TrainingRun& training);
/// Schema sortie/report/1.
nlohmann::ordered_json report_json(const RunView& run, const TrainingRun& training);

}  // namespace sortie::launcher
