// On which hosts the next attempt runs: a part of decide().
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {

struct Placement {
  std::vector<std::string> hosts;  // in rank order; empty = there are none to go on with
  std::map<std::string, std::string> replaced;  // by spare
  std::vector<std::string> cordon;              // that are sick and no longer among `hosts`
  std::string text;                             // what changed and why, or why there are none
};

/// 1. A host that can not be used, or is cordoned, has to go. One that is blamed twice, or in
///    several runs, ought to; one that is slow may.
/// 2. The first spare with enough slots takes its place, or a host that is fit again.
/// 3. Without one the job goes on with fewer hosts, where min_hosts and `pool.legal` allow that.
/// 4. Else a host that only ought to go, or may, stays, and is not cordoned; for one that has to
///    there is nothing.
/// 5. Places that have been empty since an earlier attempt are taken again (grow_hosts.h).
Placement place_hosts(const config::RecoveryConfig& recovery,
                      const std::vector<AttemptEnd>& history, const HostPool& pool);

/// Of a run that ends: the host whose fault, reported in its last attempt, a person has to mend. It
/// is cordoned, so that the next run does not start on it. One that was merely blamed twice is not:
/// without another host it can not be told from the program.
std::vector<std::string> broken_hosts(const config::RecoveryConfig& recovery,
                                      const std::vector<AttemptEnd>& history, const HostPool& pool);

/// While an attempt runs, whose hosts are `pool.hosts`: the same after a planned restart at this
/// moment, if more hosts would take part then. `history`: not empty.
std::optional<Placement> larger(const config::RecoveryConfig& recovery,
                                const std::vector<AttemptEnd>& history, const HostPool& pool);

/// The spare for which a host that is named as slow is to leave; none where it stays. No more than
/// recovery.slow_swaps hosts of a run leave, each once. `leaving`: those for which that was decided
/// in the attempt that runs.
std::optional<std::string> swap_for_slow(const config::RecoveryConfig& recovery,
                                         const std::vector<AttemptEnd>& history,
                                         const HostPool& pool, const std::set<std::string>& leaving,
                                         const std::string& host);

}  // namespace sortie::launcher
