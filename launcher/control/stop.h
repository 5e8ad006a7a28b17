// `sortie stop`.
#pragma once

#include <string>

namespace sortie::launcher {

/// Tells the supervisor to stop the run (now: KILL, no grace) and waits for the end. Where there is
/// none and hosts may hold the ranks, a supervisor is started for that. 0 when it has ended, by
/// this or before; 5 when ranks may be left.
int stop_run(const std::string& run, const std::string& log_dir, bool now);

}  // namespace sortie::launcher
