// The hosts of recovery.spares, and what takes the place of hosts that can not be used. Pure, but
// for a groups file that a line mentions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/hostlist.h"

namespace sortie::launcher {

/// In the order of recovery.spares. ErrorCode::config: a line that is none, a spare twice, one
/// that is among `hosts`, or one of a site that these do not have. Paths of `job` are absolute.
Result<std::vector<config::HostSlots>> job_spares(const config::JobConfig& job,
                                                  const std::vector<config::HostSlots>& hosts);

bool holds(const std::vector<config::HostSlots>& hosts, const std::string& name);

/// The place of `host` taken by `spare`: as many of its slots, the first ones.
config::HostSlots in_place_of(const config::HostSlots& host, const config::HostSlots& spare);

/// The hosts of the next attempt with their slots, for its plan: those that ran before as they
/// were, spares with as many slots as the host whose place they take (`replaced`: of the Decision).
/// Names that are neither are left out.
std::vector<config::HostSlots> with_slots(const std::vector<std::string>& names,
                                          const std::vector<config::HostSlots>& before,
                                          const std::vector<config::HostSlots>& spares,
                                          const std::map<std::string, std::string>& replaced);

}  // namespace sortie::launcher
