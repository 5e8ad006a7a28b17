#include "runner/process/exec_child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "common/base/c_strings.h"
#include "common/base/exit_code.h"
#include "runner/mpi/mpi_program.h"
#include "runner/process/cgroup.h"
#include "runner/process/process_tree.h"

namespace sortie::runner {
namespace {

/// Tries every candidate as execvp does: skips missing ones, remembers one that may not be
/// executed, and passes a text without #! to /bin/sh. Returns the errno that explains the failure.
int try_candidates(const HeldSpec& spec) {
  const std::vector<char*> argv = c_strings(spec.argv);
  const std::vector<char*> env = c_strings(spec.env);
  int reason = ENOENT;
  for (const std::string& path : spec.candidates) {
    if (spec.refuse_mpi && ::access(path.c_str(), X_OK) == 0)
      if (const auto needed = needed_libraries(path); needed && !mpi_library(*needed).empty())
        return kUnconnectedMpi;
    ::execve(path.c_str(), argv.data(), env.data());
    if (errno == ENOEXEC) {
      std::vector<std::string> shell = {"/bin/sh", path};
      shell.insert(shell.end(), spec.argv.begin() + 1, spec.argv.end());
      ::execve("/bin/sh", c_strings(shell).data(), env.data());
    }
    if (errno == ENOENT || errno == ENOTDIR) continue;
    reason = errno;
    if (errno != EACCES) break;
  }
  return reason;
}

}  // namespace

void begin_child(pid_t keeper) {
  ::setsid();
  // If keeper and runner are killed together, at least the process itself dies too.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper) ::_exit(kExitNotFound);
}

void exec_child(const HeldSpec& spec, int error_fd, int control) {
  if (!spec.cgroup.empty()) cgroup::join(spec.cgroup);
  if (spec.announce) {
    const KeeperReport here{.kind = KeeperReport::Kind::announced};
    if (::send(control, &here, sizeof here, MSG_NOSIGNAL) < 0) ::_exit(kExitNotFound);
  }
  const int input = spec.stdin_fd >= 0 ? spec.stdin_fd : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(input, 0);
  ::dup2(spec.stdout_fd, 1);
  ::dup2(spec.stderr_fd, 2);
  cloexec_all_descriptors();
  for (const std::string& folder : spec.folders)
    if (!folder.empty() && ::chdir(folder.c_str()) == 0) break;
  if (!spec.cpus.empty()) cpu::confine_to(spec.cpus);
  restore(spec.defaults);
  const int reason = try_candidates(spec);
  if (::write(error_fd, &reason, sizeof reason) < 0) ::_exit(kExitNotRunnable);
  ::_exit(kExitNotFound);
}

}  // namespace sortie::runner
