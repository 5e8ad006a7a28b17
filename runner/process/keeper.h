// The keeper: a fork of the runner that holds one process (a rank, or sortie-pmix) and all its
// descendants. It is a child subreaper, so no descendant can escape it. It kills all of them when
// ordered to, when the held process dies, and when the runner is gone, however that died: the
// runner's end of the control socket closes. The keeper never returns to the runner's code and
// touches nothing of it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/cpu/cpu_list.h"
#include "runner/process/oom.h"
#include "runner/process/process_defaults.h"

namespace sortie::runner {

/// The process to hold. The caller keeps ownership of the descriptors; the fork gets copies.
struct HeldSpec {
  std::string title;                    // keeper's name in ps, at most 15 bytes
  std::vector<std::string> candidates;  // paths to exec; uses the first that exists, as execvp does
  std::vector<std::string> argv;
  std::vector<std::string> env;
  std::vector<std::string> folders;  // working directory: the first that can be entered
  int stdin_fd = -1;                 // -1 = /dev/null
  int stdout_fd = -1;
  int stderr_fd = -1;
  int program_fd = -1;     // kept open until exec, when a candidate is /proc/self/fd/N
  cpu::CpuList cpus;       // CPUs that it is confined to; empty = those of the runner
  std::string cgroup;      // of this process alone, exists already; empty = none
  std::string job_cgroup;  // of the whole job; removed if the runner was killed; empty = none
  std::string run_folder;  // removed by the last keeper if the runner was killed; empty = none
  ProcessDefaults defaults;
  bool detaches =
      false;  // processes that outlive it are not killed: podman's monitor of a container
  bool refuse_mpi = false;  // do not start an MPI program: kUnconnectedMpi
  bool announce = false;    // the process reports its pid before exec: see Kind::announced
};

/// KeeperReport::error for a program that was refused because no PMIx connects its ranks: each rank
/// would run as a job of one.
inline constexpr std::int32_t kUnconnectedMpi = -1;

/// Grace between TERM and KILL for a held process whose runner is gone.
inline constexpr std::chrono::milliseconds kOrphanGrace{1000};
/// A process that still exists this long after KILL is reported as unkillable. Shorter than the
/// time for which the launcher waits after the grace period (Attempt::Parts::stop_slack).
inline constexpr std::chrono::milliseconds kUnkillableAfter{5000};
/// The same for processes of other users (sudo, setuid programs), which can not be killed at all.
inline constexpr std::chrono::milliseconds kForeignAfter{1000};

/// Messages between runner and keeper, one per packet of a SOCK_SEQPACKET pair. Both ends are the
/// same binary.
struct KeeperCommand {
  std::uint32_t grace_ms = 0;  // TERM now, then KILL; a later command can only shorten it
};
struct KeeperReport {
  enum class Kind : std::uint32_t {
    started,       // exec succeeded; pid
    spawn_failed,  // error = errno of exec; gone follows
    died,          // the held process is dead: wait_status, time, stopped
    gone,          // nothing is left; leftovers, oom. Last report
    unkillable,    // pid does not die. error = EPERM: it is another user's; if the held process is
                   // dead, gone follows at once. Else gone follows if pid ever dies
    keeper_lost,   // made by HeldProcess: the keeper died without sending gone
    announced,     // from the process itself, before exec; HeldProcess takes the pid, as the runner
                   // sees it, from the packet's credentials (a container numbers its processes
                   // differently)
  };
  Kind kind = Kind::started;
  pid_t pid = 0;
  std::int32_t error = 0;
  std::int32_t wait_status = 0;
  std::uint32_t stopped = 0;  // the keeper had begun to stop it before it began to end
  std::uint32_t leftovers = 0;
  oom::Evidence oom = oom::Evidence::none;
  std::uint32_t found = 0;  // spawn_failed with ENOENT: only the program's interpreter is missing
  std::uint64_t time_unix_ms = 0;
  std::uint64_t time_boot_ms = 0;
};

/// What a keeper that was forked before its order has prepared.
struct KeeperAhead {
  oom::Watch oom;
  Fd orders, exec_error;  // send the waiting process its order; receive its errno
  pid_t waiting = -1;     // a child that becomes the held process when it receives the same order
};

/// Body of the keeper, run in the child of the runner's fork. `control` is the keeper's end of the
/// socket pair.
[[noreturn]] void keeper_main(const HeldSpec& spec, int control);
/// Same, after begin_keeper() has run.
[[noreturn]] void keeper_main(const HeldSpec& spec, int control, KeeperAhead ahead);

/// Starts a new session, points descriptors 0 to 2 to /dev/null, changes to / and becomes the
/// reaper of orphaned descendants.
void begin_keeper();

}  // namespace sortie::runner
