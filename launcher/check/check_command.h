// `sortie check`: one pass over all hosts of a job, nothing of which is started or changed.
#pragma once

#include <chrono>
#include <optional>

#include "launcher/check/comm_job.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher::check {

struct CheckOptions {
  bool json = false;
  bool only_hosts = false;                      // no program was named: ask about none
  double bandwidth_s = 0;                       // 0: not measured
  std::chrono::milliseconds host_limit{10000};  // of each stage of a connection, and to answer
  std::optional<CommOptions> comm;              // measure the links between the hosts, too
};

/// Prints the table, keeps what it has measured between sites for `sortie plan` (site_links.h),
/// and prints that, too. Prints (or JSON) on stdout; returns 0, 1 or 2, or 3 when a link is too
/// slow.
int run_check(const PlannedJob& job, const CheckOptions& options);

}  // namespace sortie::launcher::check
