// What lost runs left on this host: runs whose runner and keepers were killed together. Fencing:
// processes of an earlier attempt of the same run are found by a marker in their environment and
// killed before the new attempt starts.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

namespace sortie::runner {

/// Sends KILL to this user's processes whose environment has SORTIE_RUN_ID=run_id and a
/// SORTIE_ATTEMPT below `attempt`. Returns how many were signalled; call again until it returns 0.
std::size_t kill_stale_processes(std::string_view run_id, std::uint32_t attempt);

/// Removes those cgroups of this user's runs, in our own cgroup, that contain no process and whose
/// run folder no process holds. If that can not be determined, the folder counts as held.
void remove_stale_cgroups();

/// Whether the process was started with SORTIE_RUN_ID=run_id in its environment. Misses a process
/// that was given another environment, or whose environment this user can not read.
bool belongs_to_run(pid_t pid, std::string_view run_id);

}  // namespace sortie::runner
