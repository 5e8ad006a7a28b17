// Reads from the files of a run without supervisor when it was last alive, and how long its hosts
// may hold its ranks.
#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

/// Maximum age in seconds of the last sign of life at the moment in which hosts lost their
/// supervisor: there is one sign a minute (run/run_journal.h), hosts wait for their lease, and
/// clocks differ.
inline constexpr double kSignSlackSeconds = 600;

/// Time of the last write in the folder of a run or in those of its sites, of any attempt, in
/// seconds since 1970. 0 if the folder does not exist.
double last_sign_of_life(const std::filesystem::path& run);

/// Seconds for which the hosts of the run hold their ranks without a supervisor
/// (runner.on_launcher_loss); 0: they do not. Error: config.toml can not be read.
Result<double> hold_seconds(const std::filesystem::path& run);

/// Maximum seconds from now for which hosts may still hold ranks; 0: they hold none. `last_sign`:
/// last_sign_of_life(); `hold`: hold_seconds().
double hold_left(double last_sign, double hold);

/// Text about the two commands that help in this case: "`sortie attach --adopt ID` goes on with
/// them, ...".
std::string help_for_held(const std::string& run_id);

}  // namespace sortie::launcher
