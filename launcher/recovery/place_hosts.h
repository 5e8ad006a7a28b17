// On which hosts the next attempt runs: a part of decide().
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {

struct Placement {
  std::vector<std::string> hosts;  // in rank order; empty = there are none to go on with
  std::map<std::string, std::string> replaced;  // by spare
  std::vector<std::string> cordon;              // that are blamed twice and no longer among `hosts`
  std::string text;                             // what changed and why, or why there are none
};

/// 1. A host that can not be used, or is cordoned, has to go. One that is blamed twice ought to.
/// 2. The first spare with enough slots takes its place.
/// 3. Without one the job goes on with fewer hosts, where min_hosts and `pool.legal` allow that.
/// 4. Else a host that only ought to go stays, and is not cordoned; for one that has to there is
///    nothing.
Placement place_hosts(const config::RecoveryConfig& recovery,
                      const std::vector<AttemptEnd>& history, const HostPool& pool);

}  // namespace sortie::launcher
