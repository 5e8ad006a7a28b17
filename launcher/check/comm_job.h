// The job that measures the links of a job's hosts: `sortie run` of `sortie-train bench comm`.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "launcher/check/comm.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher::check {

struct CommOptions {
  bool all_ranks = false;                   // --comm-ranks slots: else one rank per host
  std::optional<double> floor_gbit_s = {};  // --comm-floor
  std::uint64_t bytes = 16u << 20;          // over each link and way
  std::chrono::seconds limit{300};          // for all of it
};

/// The job, as a config for `sortie run`: the hosts, network, transport and environment of `job`,
/// and nothing of its training. `trainer`: the sortie-train beside this program, for jobs of other
/// programs.
config::JobConfig comm_job(const PlannedJob& job, const CommOptions& options,
                           const std::string& trainer);

/// How the measuring went. `interrupted`: the signal that ended it early, which the caller passes
/// on; no outcome then.
struct CommEnd {
  CommOutcome outcome;
  int interrupted = 0;
};
/// Runs it as a child of this process, `sortie` being this program, and judges what it found. Ends
/// it at the limit. TERM, INT and HUP end it and come back in `interrupted`.
CommEnd run_comm_job(const config::JobConfig& job, const CommOptions& options,
                     const std::filesystem::path& sortie);

}  // namespace sortie::launcher::check
