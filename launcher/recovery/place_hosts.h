// Chooses the hosts of the next attempt. Part of decide().
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {

struct Placement {
  std::vector<std::string> hosts;               // in rank order; empty = the run can not continue
  std::map<std::string, std::string> replaced;  // spare -> the host that it replaces
  std::vector<std::string> cordon;              // sick hosts that are no longer in `hosts`
  std::string text;                             // what changed and why, or why `hosts` is empty
};

/// Places the hosts of the next attempt:
/// 1. A host that can not be used or is cordoned must leave. A host that was blamed twice, or in
///    several runs, should leave. A slow host may leave.
/// 2. The first spare with enough slots, or a host of the job that is fit again, takes its place.
/// 3. Without one the job continues with fewer hosts, if min_hosts and `pool.legal` allow it.
/// 4. Otherwise a host that should or may leave stays and is not cordoned. If a host must leave,
///    the result has no hosts.
/// 5. Hosts fill places that have been empty since an earlier attempt (grow_hosts.h).
Placement place_hosts(const config::RecoveryConfig& recovery,
                      const std::vector<AttemptEnd>& history, const HostPool& pool);

/// Returns the host to cordon when the run ends: one whose fault, reported in the last attempt,
/// needs manual repair. Cordoning keeps the next run from starting on it. A host that was only
/// blamed twice is not cordoned: without another host its fault can not be distinguished from a
/// fault of the program.
std::vector<std::string> broken_hosts(const config::RecoveryConfig& recovery,
                                      const std::vector<AttemptEnd>& history, const HostPool& pool);

/// Returns the placement after a planned restart of the running attempt, whose hosts are
/// `pool.hosts`, if more hosts would take part then. `history` must not be empty.
std::optional<Placement> larger(const config::RecoveryConfig& recovery,
                                const std::vector<AttemptEnd>& history, const HostPool& pool);

/// Returns the spare that replaces `host`, which was reported as slow; nullopt if the host stays.
/// At most recovery.slow_swaps hosts leave a run this way, each once. `leaving`: hosts of the
/// running attempt for which a swap is already decided.
std::optional<std::string> swap_for_slow(const config::RecoveryConfig& recovery,
                                         const std::vector<AttemptEnd>& history,
                                         const HostPool& pool, const std::set<std::string>& leaving,
                                         const std::string& host);

}  // namespace sortie::launcher
