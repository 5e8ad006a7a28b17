#include "runner/process/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "common/base/boot_clock.h"
#include "runner/cleanup/folder_lock.h"
#include "runner/cleanup/shared_memory.h"
#include "runner/process/cgroup.h"
#include "runner/process/exec_child.h"
#include "runner/process/oom.h"
#include "runner/process/order.h"
#include "runner/process/process_tree.h"
#include "runner/unix_time.h"

namespace sortie::runner {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Keeper {
 public:
  Keeper(const HeldSpec& spec, int control) : spec_(spec), control_(control) {}

  void run(std::optional<KeeperAhead> ahead) {
    if (!start(std::move(ahead))) return;
    while (!dead_) {
      wait_for_events(stopping_ ? kill_at_ : last_tick_ + oom::kTick);
      if (Clock::now() - last_tick_ < oom::kTick) continue;
      oom_->tick();
      last_tick_ = Clock::now();
    }
    end_leftovers();
    finish();
  }

 private:
  /// Starts the held process. The loop waits for its exec, which may hang on a dead file server.
  bool start(std::optional<KeeperAhead> ahead) {
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    signals_ = ::signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0) return spawn_failed(errno);
    if (ahead && order_ahead(*ahead)) {
      held_ = ahead->waiting;
      exec_error_ = ahead->exec_error.release();
    } else if (const int error = fork_held(); error != 0) {
      return spawn_failed(error);
    }
    if (ahead)
      oom_ = ahead->oom;
    else
      oom_.emplace();  // concurrently with its start
    oom_->follow(spec_.cgroup);
    // stdin and stdout may be the same socket; closing it twice is harmless here.
    for (int fd : {spec_.stdin_fd, spec_.stdout_fd, spec_.stderr_fd, spec_.program_fd})
      if (fd > 2) ::close(fd);
    return true;
  }

  /// Returns false if no child waits, or if it lacks the control socket that it would need.
  bool order_ahead(const KeeperAhead& ahead) const {
    return ahead.waiting > 0 && !spec_.announce && send_order(ahead.orders.get(), spec_, -1);
  }

  /// Returns errno, 0 on success.
  int fork_held() {
    int error_pipe[2];
    if (::pipe2(error_pipe, O_CLOEXEC) != 0) return errno;
    const pid_t self = ::getpid();
    held_ = ::fork();
    if (held_ < 0) return errno;
    if (held_ == 0) {
      begin_child(self);
      exec_child(spec_, error_pipe[1], control_);
    }
    ::close(error_pipe[1]);
    exec_error_ = error_pipe[0];
    return 0;
  }

  bool spawn_failed(int error) {
    report({.kind = KeeperReport::Kind::spawn_failed, .error = error});
    report({.kind = KeeperReport::Kind::gone});
    return false;
  }

  void report(KeeperReport message) {
    message.time_unix_ms = unix_ms();
    message.time_boot_ms = static_cast<std::uint64_t>(boot_ms());
    if (control_ >= 0) ::send(control_, &message, sizeof message, MSG_NOSIGNAL);
  }

  void wait_for_events(Clock::time_point until) {
    int timeout = -1;
    if (until != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
      timeout = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60000));
    }
    pollfd polled[3] = {{control_, POLLIN, 0}, {signals_, POLLIN, 0}, {exec_error_, POLLIN, 0}};
    ::poll(polled, 3, timeout);
    if (polled[2].revents) read_exec_result();
    if (polled[0].revents) {
      const bool was_dead = dead_;
      look_at_held();
      if (dead_ == was_dead) read_command();  // a death before the command is no stop
    }
    if (polled[1].revents) discard_signals();
    look_at_held();
    if (!dead_ && stopping_ && Clock::now() >= kill_at_) kill_held();
  }

  void discard_signals() {
    signalfd_siginfo discarded[8];
    while (::read(signals_, discarded, sizeof discarded) > 0) {
    }
  }

  void read_exec_result() {
    int error = 0;
    const ssize_t count = ::read(exec_error_, &error, sizeof error);
    ::close(exec_error_);
    exec_error_ = -1;
    exec_failed_ = count == sizeof error;
    if (exec_failed_)
      report({.kind = KeeperReport::Kind::spawn_failed,
              .error = error,
              .found = error == ENOENT && any_candidate_exists() ? 1u : 0u});
    else
      report({.kind = KeeperReport::Kind::started, .pid = held_});
  }

  /// Skips relative paths: they are relative to the working directory of the held process.
  bool any_candidate_exists() const {
    return std::ranges::any_of(spec_.candidates, [](const std::string& path) {
      return path.starts_with('/') && ::access(path.c_str(), F_OK) == 0;
    });
  }

  void read_command() {
    KeeperCommand command;
    const ssize_t count = ::recv(control_, &command, sizeof command, MSG_DONTWAIT);
    if (count == sizeof command) return begin_stop(milliseconds(command.grace_ms));
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    ::close(control_);
    control_ = -1;
    begin_stop(kOrphanGrace);
  }

  void begin_stop(milliseconds grace) {
    const Clock::time_point at = Clock::now() + grace;
    kill_at_ = stopping_ ? std::min(kill_at_, at) : at;
    if (!stopping_ && !dead_) {
      // Peers notice its closed connections before it is a zombie. The Stop that follows from their
      // failure must not hide that this process was the first.
      ended_before_stop_ = is_ending(held_);
      if (!ended_before_stop_ && has_ending_descendant(held_)) await_own_end(at);
    }
    if (!stopping_ && !dead_) {
      // Sent only once: programs treat a second TERM as impatience. The group does not exist before
      // setsid.
      if (::kill(-held_, SIGTERM) != 0) ::kill(held_, SIGTERM);
      ::kill(-held_, SIGCONT);  // a stopped process handles TERM only after CONT
    }
    stopping_ = true;
  }

  /// The trainer of a wrapper script is ending. The script, whose end is the rank's, ends a moment
  /// later by itself.
  void await_own_end(Clock::time_point kill_at) {
    constexpr milliseconds kMoment{300}, kLook{10};
    const Clock::time_point until = std::min(Clock::now() + kMoment, kill_at);
    while (!dead_ && Clock::now() < until && has_ending_descendant(held_)) {
      pollfd polled = {signals_, POLLIN, 0};
      ::poll(&polled, 1, static_cast<int>(kLook.count()));
      discard_signals();
      look_at_held();
    }
    if (!dead_) ended_before_stop_ = is_ending(held_);
  }

  void kill_held() {
    if (!spec_.cgroup.empty()) cgroup::kill_all(spec_.cgroup);
    ::kill(-held_, SIGKILL);
    ::kill(held_, SIGKILL);
    if (killed_at_ == Clock::time_point{}) killed_at_ = Clock::now();
    kill_at_ = Clock::now() + milliseconds(200);
    complain_if_unkillable();
  }

  /// Records the death of the held process but keeps the zombie: while it exists, its pid and its
  /// process group can not be reused. Reaps other children as they exit.
  void look_at_held() {
    siginfo_t info{};
    if (!dead_ &&
        ::waitid(P_PID, static_cast<id_t>(held_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == held_) {
      if (exec_error_ >= 0) read_exec_result();
      dead_ = true;
      const bool stopped = stopping_ && !ended_before_stop_;
      killed_by_others_ = !stopped && info.si_code == CLD_KILLED && info.si_status == SIGKILL;
      if (!exec_failed_)
        report({.kind = KeeperReport::Kind::died,
                .pid = held_,
                .wait_status = status_of(info),
                .stopped = stopped ? 1u : 0u});
      return;  // end_leftovers() handles the others from here on
    }
    if (!any_zombie()) return;
    for (pid_t child : direct_children())
      if (child != held_) reap(child);
  }

  /// Checked before listing the children, which takes several system calls.
  static bool any_zombie() {
    siginfo_t info{};
    return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  }

  static int status_of(const siginfo_t& info) {
    if (info.si_code == CLD_EXITED) return (info.si_status & 0xff) << 8;
    return info.si_status | (info.si_code == CLD_DUMPED ? 0x80 : 0);
  }

  /// Returns true if `child` was a zombie and is now reaped.
  bool reap(pid_t child) {
    int status = 0;
    const pid_t pid = ::waitpid(child, &status, WNOHANG);
    if (pid > 0 && dead_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ++leftovers_;
    return pid > 0;
  }

  /// Ends what the dead held process left. During a Stop, the rest of its process group, which also
  /// got TERM (the trainer of a wrapper script), may use the rest of the grace. Everything else is
  /// killed now, repeatedly, until wait finds no child.
  void end_leftovers() {
    if (spec_.detaches && !stopping_) {
      ::waitpid(held_, nullptr, 0);
      return;
    }
    while (stopping_ && Clock::now() < kill_at_ && group_has_others())
      wait_for_events(std::min(kill_at_, Clock::now() + milliseconds(50)));
    killed_at_ = Clock::now();
    complained_ = false;      // that was about the held process
    ::kill(-held_, SIGKILL);  // the zombie still reserves the group's number
    milliseconds pause{1};
    bool held_reaped = false;
    for (;;) {
      if (!spec_.cgroup.empty()) cgroup::kill_all(spec_.cgroup);
      std::vector<pid_t> children = direct_children();
      if (!held_reaped) std::erase(children, held_);
      kill_children(children);
      for (pid_t child : children) reap(child);
      const bool given_up = complained_ && are_foreign(children);
      if (children.empty() || given_up) {
        if (!held_reaped) {
          ::waitpid(held_, nullptr, 0);
          held_reaped = true;
        }
        if (given_up || (::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD)) return;
      }
      complain_if_unkillable();
      pollfd polled = {signals_, POLLIN, 0};
      ::poll(&polled, 1, static_cast<int>(pause.count()));
      discard_signals();
      if (Clock::now() - killed_at_ > milliseconds(500)) pause = milliseconds(20);
      if (complained_) pause = milliseconds(1000);
    }
  }

  /// Whether the group has a member besides the zombie of the held process.
  bool group_has_others() {
    look_at_held();
    for (pid_t child : direct_children())
      if (child != held_ && ::getpgid(child) == held_) return true;
    return false;
  }

  /// Whether all of these are alive and belong to other users, so that they can not be killed.
  static bool are_foreign(std::span<const pid_t> children) {
    return !children.empty() && std::ranges::all_of(children, [](pid_t child) {
      return ::kill(child, 0) != 0 && errno == EPERM;
    });
  }

  void complain_if_unkillable() {
    if (complained_ || Clock::now() - killed_at_ < kForeignAfter) return;
    std::vector<pid_t> alive = direct_children();
    std::erase_if(alive, [](pid_t child) { return process_state(child) == 'Z'; });
    if (alive.empty()) return;
    const bool foreign = are_foreign(alive);
    if (!foreign && Clock::now() - killed_at_ < kUnkillableAfter) return;
    complained_ = true;
    report({.kind = KeeperReport::Kind::unkillable,
            .pid = alive.front(),
            .error = foreign ? EPERM : 0});
  }

  void finish() {
    auto evidence = oom::Evidence::none;
    if (!spec_.cgroup.empty()) {
      if (oom_->own_rose()) evidence = oom::Evidence::rank;
      cgroup::remove(spec_.cgroup);
    }
    if (evidence == oom::Evidence::none && killed_by_others_ && oom_->rose())
      evidence = oom::Evidence::host;
    report({.kind = KeeperReport::Kind::gone, .leftovers = leftovers_, .oom = evidence});
    pollfd runner = {control_, POLLRDHUP, 0};
    if (control_ < 0 || (::poll(&runner, 1, 0) > 0 && (runner.revents & (POLLHUP | POLLRDHUP))))
      clean_up_for_runner();
  }

  /// The runner was killed: the last keeper removes what the runner would have removed.
  void clean_up_for_runner() {
    if (!spec_.job_cgroup.empty()) cgroup::remove(spec_.job_cgroup);
    if (!folder_) return;
    // Keepers that end together also check together; a moment later one of them is the last.
    constexpr std::chrono::milliseconds kMoment{200};
    const auto deadline = Clock::now() + kMoment;
    while (!folder_->is_last()) {
      folder_->let_go();
      if (Clock::now() >= deadline) return;
      ::usleep(static_cast<useconds_t>(1000 + ::getpid() % 7 * 500));
    }
    remove_with_shared_memory(spec_.run_folder);
  }

 public:
  void open_lock() {
    if (spec_.run_folder.empty()) return;
    folder_ = hold_folder(spec_.run_folder);
  }

 private:
  const HeldSpec& spec_;
  int control_;
  int signals_ = -1;
  int exec_error_ = -1;
  std::optional<FolderLock> folder_;
  pid_t held_ = -1;
  bool dead_ = false;
  bool stopping_ = false;
  bool ended_before_stop_ = false;
  bool exec_failed_ = false;
  bool complained_ = false;
  bool killed_by_others_ = false;
  std::optional<oom::Watch> oom_;  // set once a held process exists
  Clock::time_point last_tick_ = Clock::now();
  Clock::time_point kill_at_{}, killed_at_{};
  std::uint32_t leftovers_ = 0;
};

}  // namespace

void begin_keeper() {
  ::setsid();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // not inherited by forked processes
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; ++fd) ::dup2(null, fd);
  ::close(null);
  if (::chdir("/") != 0) ::_exit(1);
}

namespace {

[[noreturn]] void keep(const HeldSpec& spec, int control, std::optional<KeeperAhead> ahead) {
  ::prctl(PR_SET_NAME, spec.title.c_str());
  Keeper keeper(spec, control);
  keeper.open_lock();
  keeper.run(std::move(ahead));
  ::_exit(0);
}

}  // namespace

void keeper_main(const HeldSpec& spec, int control) {
  // No descriptor of the runner may stay open here, above all not the other keepers' control
  // sockets (they would outlive the runner) and not its stdio (the launcher would wait for end of
  // file).
  close_descriptors_except(
      {control, spec.stdin_fd, spec.stdout_fd, spec.stderr_fd, spec.program_fd});
  begin_keeper();
  keep(spec, control, std::nullopt);
}

void keeper_main(const HeldSpec& spec, int control, KeeperAhead ahead) {
  keep(spec, control, std::move(ahead));
}

}  // namespace sortie::runner
