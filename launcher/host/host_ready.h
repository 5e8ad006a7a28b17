// What a host says of itself before its ranks start, checked before anything is made of it.
#pragma once

#include <string>
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
};

/// `reached_at`: its address, empty when unknown. ErrorCode::protocol: outside the grammar.
Result<HostFacts> check_ready(const HostPlan& host, const std::string& reached_at,
                              const wire::JobReady& ready);

}  // namespace sortie::launcher
