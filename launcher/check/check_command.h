// `sortie check`: checks all hosts of a job. It starts nothing permanent and changes nothing on
// them.
#pragma once

#include <chrono>
#include <optional>

#include "launcher/check/comm_job.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher::check {

struct CheckOptions {
  bool json = false;
  bool only_hosts = false;                      // no program was named: skip the checks of programs
  double bandwidth_s = 0;                       // seconds per measurement; 0 = do not measure
  std::chrono::milliseconds host_limit{10000};  // per stage of a connection, and per answer
  std::optional<CommOptions> comm;              // also measure the links between the hosts
};

/// Checks the hosts and prints a table or JSON on stdout. Also prints the rates measured between
/// sites, and stores them for `sortie plan` (site_links.h). Returns 0 (passed), 1 (warnings), 2
/// (failures), 3 if a link is too slow, or 128 + the signal that interrupted it.
int run_check(const PlannedJob& job, const CheckOptions& options);

}  // namespace sortie::launcher::check
