// `sortie logs`.
#pragma once

#include <string>

namespace sortie::launcher {

struct LogsRequest {
  std::string run, log_dir;
  std::string ranks, hosts, since, grep, site;  // empty: not given
  int attempt = 0;
  bool follow = false;
};

/// Prints, and with `follow` goes on until the run ends. Returns the exit code.
int show_logs(const LogsRequest& request);

}  // namespace sortie::launcher
