// `sortie stop`: stops a run.
#pragma once

#include <string>

namespace sortie::launcher {

/// Makes the supervisor stop the run (`now`: SIGKILL without a grace) and waits for the end. If
/// there is no supervisor and hosts may hold ranks, starts one for this. Returns 0 if the run has
/// ended, also if it had ended before; 5 if ranks may be left.
int stop_run(const std::string& run, const std::string& log_dir, bool now);

}  // namespace sortie::launcher
