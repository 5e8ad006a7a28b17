// `sortie ssh HOST [COMMAND...]`: a terminal on one host, or a command there, over the connection
// that every other verb uses.
#pragma once

#include <string>
#include <vector>

#include "launcher/run/job_options.h"

namespace sortie::launcher {

struct SshOptions {
  JobOptions job;
  std::string host;  // any host, or an expression that names one: "@login", "gpu[07]"
  std::vector<std::string> command;  // words, joined by blanks for the login shell, as ssh does
  bool terminal = false;             // also with a command
  bool no_terminal = false;
  bool no_escapes = false;
};

/// Returns the exit code of what ran there, or one of ours; errors are printed. Where hosts are
/// reached by a program of the user's, that program takes the place of this process.
int ssh_command(const SshOptions& options);

}  // namespace sortie::launcher
