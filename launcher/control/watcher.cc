#include "launcher/control/watcher.h"

#include <fmt/core.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/command_name.h"
#include "common/base/print_stderr.h"
#include "common/base/process_status.h"
#include "launcher/control/detach.h"
#include "launcher/control/run_record.h"

namespace sortie::launcher {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::optional<milliseconds> Replacements::after(milliseconds lived) {
  if (lived >= kHealthyAfter) row_ = 0;
  if (row_ >= limit_) return std::nullopt;
  milliseconds pause{0};
  if (row_ > 0) {
    pause = kFirstPause;
    for (std::int64_t i = 1; i < row_ && pause < kLongestPause; ++i) pause *= 2;
    pause = std::min(pause, kLongestPause);
  }
  ++row_;
  return pause;
}

namespace {

ProcessStatus wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return {ProcessStatus::Kind::lost, 0, false};
  return ProcessStatus::from_wait_status(status);
}

/// Exits like `status`, so that the parent process learns how the supervisor ended.
[[noreturn]] void end_like(const ProcessStatus& status) {
  if (status.kind == ProcessStatus::Kind::signaled) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    std::signal(status.code, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, status.code);
    ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
    ::kill(::getpid(), status.code);
  }
  ::_exit(status.kind == ProcessStatus::Kind::exited ? status.code : EXIT_FAILURE);
}

/// Takes a SIGINT or SIGTERM that is pending for this process; 0 = none.
int asked_to_end() {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&ends, number);
  const timespec now{0, 0};
  return std::max(::sigtimedwait(&ends, nullptr, &now), 0);
}

/// Writes to supervisor.log.
void say(const fs::path& run, const std::string& text) {
  print_stderr("{}: {}\n", run.filename().string(), text);
  std::fflush(stderr);
}

class Watcher {
 public:
  Watcher(fs::path run, const WatchOrder& order, const sigset_t& mask)
      : run_(std::move(run)), order_(order), mask_(mask), replacements_(order.limit) {}

  void watch(pid_t supervisor, Clock::time_point started) {
    for (;;) {
      const ProcessStatus status = wait_for(supervisor);
      if (over(supervisor, status)) return;
      const auto lived = std::chrono::duration_cast<milliseconds>(Clock::now() - started);
      const std::string how = fmt::format("its supervisor (pid {}) has ended without a result: {}",
                                          supervisor, status.to_string());
      const auto pause = replacements_.after(lived);
      if (!pause) {
        say(run_, fmt::format("{}; {} in a row have lived less than {} s "
                              "(recovery.supervisor_restarts), so no other one is started; after "
                              "its cause is gone, `{}` starts one",
                              how, order_.limit + 1, Replacements::kHealthyAfter.count(),
                              command_line({"attach", "--adopt", run_.filename().string()})));
        return;
      }
      say(run_, fmt::format("{}; another one starts {}", how,
                            pause->count() == 0 ? "now" : fmt::format("in {} ms", pause->count())));
      rest(*pause);
      started = Clock::now();
      supervisor = replace();
      if (supervisor < 0) return;
    }
  }

 private:
  /// Whether the run has ended or another supervisor has adopted it.
  bool over(pid_t supervisor, const ProcessStatus& status) const {
    if (read_result(run_)) return true;
    const SupervisorFacts latest = latest_supervisor(run_);
    if (latest.alive) return true;
    // It supervised the run and exited regularly: another supervisor would have nothing to do.
    return status.kind == ProcessStatus::Kind::exited && latest.pid == supervisor;
  }

  static void rest(milliseconds pause) {
    sigset_t early;
    sigemptyset(&early);
    sigaddset(&early, SIGUSR1);
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(pause);
    const timespec time{seconds.count(), (pause - seconds).count() * 1'000'000};
    ::sigtimedwait(&early, nullptr, &time);
  }

  /// Starts another supervisor; returns its PID. -1: the run has ended or was adopted meanwhile, or
  /// fork failed.
  pid_t replace() {
    if (read_result(run_) || latest_supervisor(run_).alive) return -1;
    const auto child = fork_apart(
        [&](Fd notice) {
          ::prctl(PR_SET_NAME, "sortie");
          become_supervisor(std::move(notice),
                            [&](StartNotice& said) { return order_.adopt(run_, said); });
        },
        mask_);
    if (!child) {
      say(run_, child.error().message);
      return -1;
    }
    const std::string said = read_all(child->notice.get());
    const auto line = nlohmann::json::parse(said, nullptr, /*allow_exceptions=*/false);
    if (line.is_object() && !line.value("started", false))
      if (const std::string text = line.value("text", ""); !text.empty()) say(run_, text);
    return child->pid;
  }

  static std::string read_all(int pipe) {
    std::string text;
    char buffer[4096];
    for (;;) {
      const ssize_t count = ::read(pipe, buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return text;
      text.append(buffer, static_cast<std::size_t>(count));
    }
  }

  fs::path run_;
  const WatchOrder& order_;
  sigset_t mask_;
  Replacements replacements_;
};

}  // namespace

void become_watcher(Fd notice_end, const Supervise& first, const WatchOrder& order,
                    const sigset_t& mask) {
  ::prctl(PR_SET_NAME, "sortie-watch");
  StartNotice notice(std::move(notice_end));
  block_signals();
  const Clock::time_point started = Clock::now();
  auto child = fork_apart(
      [&](Fd end) {
        ::prctl(PR_SET_NAME, "sortie");
        become_supervisor(std::move(end), first);
      },
      mask);
  if (!child) {
    notice.failed(EXIT_FAILURE, child.error().message);
    ::_exit(EXIT_FAILURE);
  }
  const std::string line = listen_to(*child, mask).line;
  child->notice.reset();
  const auto said = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!said.is_object() || !said.value("started", false)) {
    if (!line.empty()) notice.pass_on(line);
    end_like(wait_for(child->pid));
  }
  const fs::path run = said.value("folder", "");
  std::optional<WatcherLock> lock;
  if (auto taken = WatcherLock::take(run, latest_supervisor(run).epoch))
    lock = std::move(*taken);
  else  // on the stderr of `sortie run`
    say(run, taken.error().message + "; if its supervisor dies, it is not replaced");
  const bool left = notice.leave_terminal(run).has_value();
  // A signal before the command has returned is meant for the run.
  if (const int number = asked_to_end()) {
    ::kill(child->pid, number);
    end_like(wait_for(child->pid));
  }
  notice.pass_on(line);
  // From here on a signal ends only the watcher; SIGUSR1 stays blocked until a pause waits for it.
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
  sigset_t watching = mask;
  sigaddset(&watching, SIGUSR1);
  ::sigprocmask(SIG_SETMASK, &watching, nullptr);
  if (!lock || !left) ::_exit(EXIT_FAILURE);
  ::malloc_trim(0);
  Watcher(run, order, mask).watch(child->pid, started);
  lock.reset();
  ::_exit(EXIT_SUCCESS);
}

}  // namespace sortie::launcher
