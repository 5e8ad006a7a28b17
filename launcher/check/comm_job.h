// The job that measures the links between hosts: `sortie run` of `sortie-train bench comm`.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "launcher/check/comm.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher::check {

struct CommOptions {
  bool all_ranks = false;                   // --comm-ranks slots; false: one rank per host
  std::optional<double> floor_gbit_s = {};  // --comm-floor
  std::uint64_t bytes = 16u << 20;          // per link and direction
  std::chrono::seconds limit{300};          // for the whole job
};

/// Makes the config of the job: hosts, network, transport and environment of `job`, without its
/// training. `trainer`: the sortie-train next to this program, used if `job` runs another program.
config::JobConfig comm_job(const PlannedJob& job, const CommOptions& options,
                           const std::string& trainer);

/// Result of run_comm_job(). `interrupted`: the signal that ended it early, which the caller
/// handles; the outcome is then invalid.
struct CommEnd {
  CommOutcome outcome;
  int interrupted = 0;
};
/// Runs the job as a child process of `sortie` (this program) and judges its report. Ends it at the
/// time limit. SIGTERM, SIGINT and SIGHUP end it and are returned in `interrupted`.
CommEnd run_comm_job(const config::JobConfig& job, const CommOptions& options,
                     const std::filesystem::path& sortie);

}  // namespace sortie::launcher::check
