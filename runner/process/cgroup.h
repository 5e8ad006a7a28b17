// cgroup v2, where one can be made: the fast way to end a rank and the proof of an OOM kill. Paths
// are plain strings because the keeper, the rank before exec and the runner all touch the same
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
/// /proc/self/cgroup. Finds the unified mount wherever it is (also /sys/fs/cgroup/unified).
Result<std::string> own_folder(std::string_view mountinfo, std::string_view self_cgroup);

/// Our own cgroup: where a job's would be made, and whether we may. The error says why there is
/// none.
struct OwnCgroup {
  std::string folder;
  bool writable = false;
};
Result<OwnCgroup> look_at_own();
/// Sortie's folders in it in which no process is any more.
std::vector<std::string> empty_jobs(const OwnCgroup& own);

/// "sortie-<run id>-<attempt>-<node>".
std::string job_folder_name(std::string_view run_id, std::uint32_t attempt, std::uint32_t node);

/// Whose job folder it is; none for any other name.
struct JobName {
  std::string run_id;
  std::uint32_t attempt = 0, node = 0;
};
std::optional<JobName> job_of_folder(std::string_view name);

/// Makes "<own folder>/<name>", ready for one child per rank; ends and reuses a stale one.
/// The error says why there is none ("not writable", "no cgroup2 mount" ...).
Result<std::string> make_job_folder(const std::string& name);

/// Ends and removes what lower attempts of a run have left in our own cgroup. Returns their number.
std::size_t end_earlier_attempts(std::string_view run_id, std::uint32_t attempt);

/// Makes `folder`, ends what a former run left in it.
Result<> make(const std::string& folder);

/// Puts the calling process into it. False when the kernel refuses.
bool join(const std::string& folder);

/// KILLs every process in it and below, at once (Linux 5.14; before that a no-op).
void kill_all(const std::string& folder);

/// Processes in it and below; none when it is not there.
std::set<pid_t> members(const std::string& folder);

/// Removes it and the folders below it. False while processes are still in it.
bool remove(const std::string& folder);

}  // namespace sortie::runner::cgroup
