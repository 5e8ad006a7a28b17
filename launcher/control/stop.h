// `sortie stop`.
#pragma once

#include <string>

namespace sortie::launcher {

/// Tells the supervisor to stop the run (now: KILL, no grace) and waits for the end. 0 when it has
/// ended, by this or before.
int stop_run(const std::string& run, const std::string& log_dir, bool now);

}  // namespace sortie::launcher
