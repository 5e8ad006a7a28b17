// `sortie logs`: prints the logs of the ranks of a run.
#pragma once

#include <string>

namespace sortie::launcher {

struct LogsRequest {
  std::string run, log_dir;
  std::string ranks, hosts, since, grep, site;  // empty: not given
  int attempt = 0;
  bool follow = false;
};

/// Prints the logs; with `follow`, until the run ends. Returns the exit code.
int show_logs(const LogsRequest& request);

}  // namespace sortie::launcher
