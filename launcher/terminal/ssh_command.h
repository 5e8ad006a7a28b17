// `sortie ssh HOST [COMMAND...]`: a terminal or a command on one host, over the same kind of
// connection as all other verbs.
#pragma once

#include <string>
#include <vector>

#include "launcher/run/job_options.h"

namespace sortie::launcher {

struct SshOptions {
  JobOptions job;
  std::string host;                  // a host, or an expression for one host: "@login", "gpu[07]"
  std::vector<std::string> command;  // joined by spaces for the login shell, as in ssh
  bool terminal = false;             // request a terminal also for a command
  bool no_terminal = false;
  bool no_escapes = false;
};

/// Returns the exit code of the remote shell or command, or an exit code of Sortie; errors are
/// printed. If hosts are reached by a program of the user or through an OpenSSH master, this
/// process is replaced by that program.
int ssh_command(const SshOptions& options);

}  // namespace sortie::launcher
