// Whether the memory of the hosts is enough for their ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Warns about hosts with less memory (HostPlan::memory_bytes) than their ranks need.
std::vector<std::string> memory_warnings(const LaunchPlan& plan);

/// ErrorCode::unsupported if the ranks of `host` need more than twice its memory. `memory_bytes`:
/// as the host reports it; 0 = unknown. The message does not have the host's name.
Result<> check_memory(const LaunchPlan& plan, const HostPlan& host, std::uint64_t memory_bytes);

}  // namespace sortie::launcher
