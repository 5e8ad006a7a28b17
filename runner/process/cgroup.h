// cgroup v2, if one can be created: the fast way to kill a rank, and the proof of an OOM kill.
// Paths are plain strings because the keeper, the rank before exec and the runner all use the same
// folder. Nothing here is needed for correctness: see keeper.h.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner::cgroup {

/// Folder of this process's own v2 cgroup, from the texts of /proc/self/mountinfo and
/// /proc/self/cgroup. Finds the unified mount at any path (also /sys/fs/cgroup/unified).
Result<std::string> own_folder(std::string_view mountinfo, std::string_view self_cgroup);

/// The runner's own cgroup, in which the job's cgroup would be created, and whether this process
/// may create one. The error says why there is no such cgroup.
struct OwnCgroup {
  std::string folder;
  bool writable = false;
};
Result<OwnCgroup> look_at_own();
/// Names of Sortie's folders in `own` that contain no process any more.
std::vector<std::string> empty_jobs(const OwnCgroup& own);

/// "sortie-<run id>-<attempt>-<node>".
std::string job_folder_name(std::string_view run_id, std::uint32_t attempt, std::uint32_t node);

/// The job that a folder name stands for; nullopt for any other name.
struct JobName {
  std::string run_id;
  std::uint32_t attempt = 0, node = 0;
};
std::optional<JobName> job_of_folder(std::string_view name);

/// Creates "<own folder>/<name>", ready for one child per rank. Kills and replaces a stale one. The
/// error says why there is none ("not writable", "no cgroup2 mount" ...).
Result<std::string> make_job_folder(const std::string& name);

/// Kills the processes of lower attempts of the run in our own cgroup and removes their folders.
/// Returns the number of these folders.
std::size_t end_earlier_attempts(std::string_view run_id, std::uint32_t attempt);

/// Creates `folder`. If it exists, kills the processes that an earlier run left in it.
Result<> make(const std::string& folder);

/// Moves the calling process into `folder`. Returns false if the kernel refuses.
bool join(const std::string& folder);

/// Sends KILL to every process in `folder` and below, at once (Linux 5.14; a no-op before).
void kill_all(const std::string& folder);

/// Processes in `folder` and below; empty if it does not exist.
std::set<pid_t> members(const std::string& folder);

/// Removes `folder` and the folders below it. Returns false while they contain processes.
bool remove(const std::string& folder);

}  // namespace sortie::runner::cgroup
