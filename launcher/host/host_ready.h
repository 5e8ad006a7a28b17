// What a host reports about itself before its ranks start, validated before use.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "launcher/plan/plan.h"
#include "launcher/supervise/meeting.h"

namespace sortie::launcher {

struct HostFacts {
  HostNetwork network;
  std::uint32_t cpus = 0;  // available to its ranks
  std::uint64_t memory_bytes = 0;
  std::vector<std::string> cpu_sets;  // one per rank, in rank order; empty without CPU binding
  std::string machine_id;             // equal for two names of one machine; empty = unknown
  std::uint32_t gpus = 0;
  bool no_work_dir = false;  // it lacks the folder in which `sortie` was called
};

/// Returns an error message if two hosts of a job are the same machine, else "". `hosts`: names and
/// machine IDs, in the order of the job. The message has the consequence and the remedy.
std::string shared_machine(const std::vector<std::pair<std::string, std::string>>& hosts);

/// Warning about hosts that lack the current folder of the launcher, in which ranks run by default.
std::string work_dir_warning(std::vector<std::string> hosts, const LaunchPlan& plan);

/// Validates `ready`. `reached_at`: the address of the host, empty if unknown. ErrorCode::protocol
/// if a field is malformed.
Result<HostFacts> check_ready(const HostPlan& host, const std::string& reached_at,
                              const wire::JobReady& ready);

}  // namespace sortie::launcher
