// What runs have left on this host whose runner was lost together with its keepers. Fencing: of an
// earlier attempt of the same run it is found by the marker in its environment and killed before
// the new one starts.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

namespace sortie::runner {

/// KILLs this user's processes whose environment says SORTIE_RUN_ID=run_id and an SORTIE_ATTEMPT
/// below `attempt`. Returns how many were signalled; call again until it is 0.
std::size_t kill_stale_processes(std::string_view run_id, std::uint32_t attempt);

/// Removes the cgroups of this user's runs, in our own cgroup, that no process is in and whose run
/// folder nobody holds. What can not be found out counts as held.
void remove_stale_cgroups();

/// Whether the environment that the process was started with says SORTIE_RUN_ID=run_id. A process
/// that has another environment, or does not let its user read it, is not found this way.
bool belongs_to_run(pid_t pid, std::string_view run_id);

}  // namespace sortie::runner
