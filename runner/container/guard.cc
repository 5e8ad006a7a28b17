#include "runner/container/guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>

#include "common/base/c_strings.h"
#include "runner/cleanup/folder_lock.h"
#include "runner/cleanup/shared_memory.h"
#include "runner/process/keeper.h"
#include "runner/process/process_tree.h"

namespace sortie::runner::container {
namespace {

using Clock = std::chrono::steady_clock;
using Commands = std::vector<std::vector<std::string>>;

/// Time for keepers: their grace, and the time after which processes count as unkillable.
constexpr auto kKeeperLimit = kOrphanGrace + kUnkillableAfter;
constexpr auto kCommandLimit = std::chrono::seconds(30);
constexpr int kRounds = 3;
constexpr useconds_t kPause = 10000;

/// Runs a command. Returns false if it failed.
bool run(const std::vector<std::string>& argv) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execv(argv.front().c_str(), c_strings(argv).data());
    ::_exit(127);
  }
  const auto deadline = Clock::now() + kCommandLimit;
  int status = 0;
  while (child > 0) {
    if (::waitpid(child, &status, WNOHANG) == child) return status == 0;
    if (Clock::now() >= deadline) ::kill(-child, SIGKILL);
    ::usleep(kPause);
  }
  return false;
}

/// Waits until no other process holds the folder, as every keeper does.
void wait_for_keepers(const std::optional<FolderLock>& folder) {
  const auto deadline = Clock::now() + kKeeperLimit;
  while (folder && !folder->is_last() && Clock::now() < deadline) ::usleep(kPause);
}

[[noreturn]] void guard_main(int control, const std::string& folder, const Commands& commands) {
  ::setsid();
  ::prctl(PR_SET_NAME, "sortie-keep-g");
  close_descriptors_except({control});
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; ++fd) ::dup2(null, fd);
  ::close(null);
  if (::chdir("/") != 0) ::_exit(1);
  const std::optional<FolderLock> held = hold_folder(folder);
  char farewell = 0;
  ssize_t count = 0;
  while ((count = ::read(control, &farewell, 1)) < 0 && errno == EINTR) {
  }
  if (count > 0) ::_exit(0);
  wait_for_keepers(held);
  for (int round = 0; round < kRounds; ++round) {
    bool all = true;
    for (const auto& argv : commands) all = run(argv) && all;
    if (all) break;  // otherwise a container ended by itself meanwhile, or the engine does not run
    ::usleep(kPause * 20);
  }
  remove_with_shared_memory(folder);
  ::_exit(0);
}

}  // namespace

Result<> Guard::start(const std::string& run_folder, const Commands& commands) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return std::unexpected(os_error(errno, "socketpair", ErrorCode::spawn));
  control_.reset(pair[0]);
  const Fd its(pair[1]);
  pid_ = ::fork();
  if (pid_ < 0) return std::unexpected(os_error(errno, "fork", ErrorCode::spawn));
  if (pid_ == 0) guard_main(its.get(), run_folder, commands);
  return {};
}

void Guard::dismiss() {
  const char farewell = 1;
  if (control_ && ::send(control_.get(), &farewell, 1, MSG_NOSIGNAL) < 0) return control_.reset();
  control_.reset();
}

}  // namespace sortie::runner::container
