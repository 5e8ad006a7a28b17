// What a host says of itself before its ranks start, checked before anything is made of it.
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
  std::uint32_t cpus = 0;  // that its ranks may use
  std::uint64_t memory_bytes = 0;
  std::vector<std::string> cpu_sets;  // of its ranks in their order; none where nobody is bound
  std::string machine_id;             // equal for two names of one machine; empty = unknown
  std::uint32_t gpus = 0;
};

/// Two hosts of a job that are one machine, "" when there are none. `hosts`: names and machine ids,
/// in the order of the job. The message says what would happen and what to do.
std::string shared_machine(const std::vector<std::pair<std::string, std::string>>& hosts);

/// `reached_at`: its address, empty when unknown. ErrorCode::protocol: outside the grammar.
Result<HostFacts> check_ready(const HostPlan& host, const std::string& reached_at,
                              const wire::JobReady& ready);

}  // namespace sortie::launcher
