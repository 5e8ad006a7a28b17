// `sortie shell`: a prompt whose lines run on all hosts.
#pragma once

#include "launcher/run/job_options.h"

namespace sortie::launcher {

struct ShellOptions {
  JobOptions job;
  bool no_history = false;
};

/// Runs the prompt and returns the exit code: 128 + N if signal N ended it, else that of `exit N`,
/// else that of the last line, else that of the first lost host.
int shell_command(const ShellOptions& options);

}  // namespace sortie::launcher
