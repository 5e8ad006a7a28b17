// The hosts of recovery.spares, and the slots of spares that replace other hosts. Pure, except that
// a groups file is read if a line names a group.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/hostlist.h"

namespace sortie::launcher {

/// Returns the spares in the order of recovery.spares. ErrorCode::config: an invalid line, a
/// duplicate spare, a spare that is one of `hosts`, or a spare whose site is none of theirs. Paths
/// in `job` must be absolute.
Result<std::vector<config::HostSlots>> job_spares(const config::JobConfig& job,
                                                  const std::vector<config::HostSlots>& hosts);

bool holds(const std::vector<config::HostSlots>& hosts, const std::string& name);

/// Returns `spare` with its first slots, as many as `host` has.
config::HostSlots in_place_of(const config::HostSlots& host, const config::HostSlots& spare);

/// Returns the hosts of the next attempt with their slots, for its plan. A host of `before` keeps
/// its slots; a spare gets as many slots as the host that it replaces (`replaced`:
/// Decision::replaced). Names that are neither are left out.
std::vector<config::HostSlots> with_slots(const std::vector<std::string>& names,
                                          const std::vector<config::HostSlots>& before,
                                          const std::vector<config::HostSlots>& spares,
                                          const std::map<std::string, std::string>& replaced);

}  // namespace sortie::launcher
