// `sortie shell`: a prompt whose lines run on all hosts.
#pragma once

#include "launcher/run/job_options.h"

namespace sortie::launcher {

struct ShellOptions {
  JobOptions job;
  bool no_history = false;
};

/// Returns the exit code: that of `exit N`, else of the last line, else of a host that was lost.
int shell_command(const ShellOptions& options);

}  // namespace sortie::launcher
