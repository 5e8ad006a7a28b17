// The keeper: a fork of the runner that holds one process (a rank, or sortie-pmix) and everything
// that descends from it. It is a child subreaper, so no descendant can leave it, and it ends all of
// them when told to, when the held process dies, and when the runner is gone (its end of the
// control socket closes whatever killed it). The keeper never returns to the runner's code and
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

/// What to hold. Descriptors stay owned by the caller; the fork gets copies.
struct HeldSpec {
  std::string title;                    // keeper's name in ps, at most 15 bytes
  std::vector<std::string> candidates;  // paths to exec, first that exists (as execvp would)
  std::vector<std::string> argv;
  std::vector<std::string> env;
  std::vector<std::string> folders;  // working directory: the first that can be entered
  int stdin_fd = -1;                 // -1 = /dev/null
  int stdout_fd = -1;
  int stderr_fd = -1;
  int program_fd = -1;     // kept open until exec, when a candidate is /proc/self/fd/N
  cpu::CpuList cpus;       // that it is confined to; empty = those of the runner
  std::string cgroup;      // of this process alone, made already; empty = none
  std::string job_cgroup;  // of the whole job: removed when the runner was killed; empty = none
  std::string run_folder;  // removed by the last keeper when the runner was killed; empty = none
  ProcessDefaults defaults;
  bool detaches =
      false;  // what it leaves when it ends is not its own: podman's monitor of a container
  bool refuse_mpi = false;  // an MPI program is not started: kUnconnectedMpi
  bool announce = false;    // the process tells its own pid before exec: see Kind::announced
};

/// KeeperReport::error of a program that was refused because nothing wires up its ranks: it would
/// run, each rank alone.
inline constexpr std::int32_t kUnconnectedMpi = -1;

/// How long a held process has after TERM when the runner is gone.
inline constexpr std::chrono::milliseconds kOrphanGrace{1000};
/// A process that is still there this long after KILL is reported as unkillable.
inline constexpr std::chrono::milliseconds kUnkillableAfter{10000};

/// Runner to keeper and back, one per packet of a SOCK_SEQPACKET pair. Both ends are the same
/// binary.
struct KeeperCommand {
  std::uint32_t grace_ms = 0;  // TERM now, KILL after it; a later command can only shorten it
};
struct KeeperReport {
  enum class Kind : std::uint32_t {
    started,       // exec has happened; pid
    spawn_failed,  // error = errno of exec; gone follows
    died,          // the held process is dead: wait_status, time, stopped
    gone,          // nothing is left: leftovers, oom. Last report
    unkillable,    // pid does not die; gone follows if it ever does
    keeper_lost,   // made by the runner's side: the keeper is dead without `gone`
    announced,     // from the process itself, before exec: HeldProcess takes its pid as the runner
                   // sees it (a container has numbers of its own) from the packet's credentials
  };
  Kind kind = Kind::started;
  pid_t pid = 0;
  std::int32_t error = 0;
  std::int32_t wait_status = 0;
  std::uint32_t stopped = 0;  // it had been signalled by us before
  std::uint32_t leftovers = 0;
  oom::Evidence oom = oom::Evidence::none;
  std::uint32_t found = 0;  // spawn_failed with ENOENT: the program is there, its interpreter not
  std::uint64_t time_unix_ms = 0;
  std::uint64_t time_boot_ms = 0;
};

/// What a keeper that waited for its order has by then.
struct KeeperAhead {
  oom::Watch oom;
  Fd orders, exec_error;  // of the process below: its order goes there, its errno comes from there
  pid_t waiting = -1;     // a child that becomes the held process when it gets the same order
};

/// Runs in the child of the runner's fork. `control` is the keeper's end of the socket pair.
[[noreturn]] void keeper_main(const HeldSpec& spec, int control);
/// The same after begin_keeper().
[[noreturn]] void keeper_main(const HeldSpec& spec, int control, KeeperAhead ahead);

/// A session of its own, nothing on descriptors 0 to 2, / as its folder, and the parent of what
/// others leave.
void begin_keeper();

}  // namespace sortie::runner
