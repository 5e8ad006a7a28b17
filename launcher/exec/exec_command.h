// `sortie exec`: runs one command on many hosts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/run/run_command.h"

namespace sortie::launcher {

struct ExecOptions {
  JobOptions job;
  bool fold = false;
  bool json = false;
  bool no_prefix = false;
  bool send_stdin = false;
  int fanout = 0;          // 0 = runner.ssh.fanout
  std::string timeout;     // duration; empty = none
  std::string grace;       // duration; empty = runner.grace
  std::string output_dir;  // empty = none
};

/// Runs the command on all hosts and prints errors. Returns the exit code.
int exec_command(const ExecOptions& options);

}  // namespace sortie::launcher
