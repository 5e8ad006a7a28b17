// The hosts of a job against the cordoned ones: spares in their places, or an error.
#pragma once

#include <string>
#include <vector>

#include "common/config/hostlist.h"
#include "common/config/load.h"
#include "launcher/nodes/node_state.h"

namespace sortie::launcher {

struct SoundHosts {
  std::vector<config::HostSlots> hosts;
  std::vector<std::string> notes;  // for people: which spare stands for whom, and why
};

/// `hosts` with the first sound spare that has enough slots in the place of each cordoned one.
/// ErrorCode::config for those without: who cordoned it, when, why, and what to do. Pure.
Result<SoundHosts> without_cordoned(const std::vector<config::HostSlots>& hosts,
                                    const std::vector<config::HostSlots>& spares,
                                    const NodeState& state, double now);

/// The same for a job that is to start, with this user's store: `hosts` and, where one was
/// replaced, runner.hosts; what was done is among the warnings of `loaded`. Checks recovery.spares
/// too.
Result<> leave_cordoned_out(config::LoadedJob& loaded, std::vector<config::HostSlots>& hosts);

}  // namespace sortie::launcher
