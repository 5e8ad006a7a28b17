#include "runner/process/process_defaults.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "runner/process/process_tree.h"

namespace sortie::runner {
namespace {

constexpr const char* kOomFile = "/proc/self/oom_score_adj";
constexpr std::string_view kRunnerOomScore = "-900";

/// Returns false if the score stays as it is: lowering it needs CAP_SYS_RESOURCE.
bool write_oom_score(std::string_view value) {
  Fd file(::open(kOomFile, O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), value.data(), value.size()) >= 0;
}

}  // namespace

ProcessDefaults become_runner() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0 && fd <= 2;) fd = ::open("/dev/null", O_RDWR);
  close_descriptors_except({});
  // A launcher that does not read the diagnostics must not block us: they are dropped instead.
  struct stat diagnostics {};
  if (::fstat(2, &diagnostics) == 0 &&
      (S_ISFIFO(diagnostics.st_mode) || S_ISSOCK(diagnostics.st_mode)))
    ::fcntl(2, F_SETFL, ::fcntl(2, F_GETFL) | O_NONBLOCK);

  ProcessDefaults defaults;
  defaults.umask = ::umask(077);
  if (::getrlimit(RLIMIT_NOFILE, &defaults.open_files) == 0) {
    rlimit raised = defaults.open_files;
    raised.rlim_cur = raised.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &raised);
  }
  defaults.oom_score_adj = read_file(kOomFile, 64).value_or(std::string());
  if (!write_oom_score(kRunnerOomScore)) defaults.oom_score_adj.clear();  // nothing to restore
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);  // if inherited as ignored, children would be reaped unseen
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return defaults;
}

void restore(const ProcessDefaults& defaults) {
  ::umask(defaults.umask);
  if (defaults.open_files.rlim_max != 0) ::setrlimit(RLIMIT_NOFILE, &defaults.open_files);
  if (!defaults.oom_score_adj.empty()) write_oom_score(defaults.oom_score_adj);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number <= SIGRTMAX; ++number) ::sigaction(number, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace sortie::runner
