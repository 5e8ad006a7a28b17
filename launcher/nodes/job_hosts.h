// Replaces the cordoned hosts of a job by spares, or fails.
#pragma once

#include <string>
#include <vector>

#include "common/config/hostlist.h"
#include "common/config/load.h"
#include "launcher/nodes/node_state.h"

namespace sortie::launcher {

struct SoundHosts {
  std::vector<config::HostSlots> hosts;
  std::vector<std::string> notes;  // for the user: which spare replaces which host, and why
};

/// Returns `hosts`, each cordoned host replaced by the first spare of its site that is not cordoned
/// and has enough slots. ErrorCode::config if there is no such spare; the message says which user
/// cordoned the host, when and why, and what to do. Pure.
Result<SoundHosts> without_cordoned(const std::vector<config::HostSlots>& hosts,
                                    const std::vector<config::HostSlots>& spares,
                                    const NodeState& state, double now);

/// The same for a job before its start, with the store of this user. If a host was replaced,
/// updates `hosts`, runner.hosts and recovery.spares, and adds the notes to the warnings of
/// `loaded`. Also validates recovery.spares.
Result<> leave_cordoned_out(config::LoadedJob& loaded, std::vector<config::HostSlots>& hosts);

}  // namespace sortie::launcher
