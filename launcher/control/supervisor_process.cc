#include "launcher/control/supervisor_process.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "common/base/pipe.h"
#include "launcher/control/detach.h"

namespace sortie::launcher {
namespace {

constexpr int kNoticeFd = 3;
volatile std::sig_atomic_t pending_signal = 0;

void note_signal(int number) {
  pending_signal = number;
}

}  // namespace

Result<ChildProcessWithNotice> fork_apart(const std::function<void(Fd)>& body,
                                          const sigset_t& mask) {
  SORTIE_ASSIGN_OR_RETURN(Pipe notice, make_pipe(ErrorCode::io));
  ChildProcessWithNotice child;
  child.notice = std::move(notice.read);
  Fd write_end = std::move(notice.write);
  child.pid = ::fork();
  if (child.pid < 0) return std::unexpected(os_error(errno, "fork"));
  if (child.pid > 0) return child;
  ::setsid();
  std::signal(SIGHUP, SIG_IGN);
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
  pending_signal = 0;
  if (write_end.get() != kNoticeFd) ::dup2(write_end.get(), kNoticeFd);
  ::fcntl(kNoticeFd, F_SETFD, FD_CLOEXEC);
  write_end.release();
  ::close_range(kNoticeFd + 1, ~0u, 0);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  body(Fd(kNoticeFd));
  ::_exit(EXIT_FAILURE);
}

void become_supervisor(Fd notice_end, const Supervise& supervise) {
  try {
    StartNotice notice(std::move(notice_end));
    const int code = supervise(notice);
    notice.failed(code, "");  // no-op if a report was sent already
    std::fflush(nullptr);
    ::_exit(code);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sortie: internal error: %s\n", error.what());
    std::fflush(nullptr);
  }
  // Not a regular exit: a watcher starts another supervisor.
  std::abort();
}

sigset_t block_signals() {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&blocked, number);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  return before;
}

Heard listen_to(const ChildProcessWithNotice& child, const sigset_t& mask) {
  struct sigaction action {};
  action.sa_handler = note_signal;
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
  Heard heard;
  for (;;) {
    if (pending_signal != 0) {
      heard.passed_on = pending_signal;
      ::kill(child.pid, heard.passed_on);
      pending_signal = 0;
    }
    pollfd polled = {child.notice.get(), POLLIN, 0};
    if (::ppoll(&polled, 1, nullptr, &mask) < 0) continue;
    char buffer[4096];
    const ssize_t count = ::read(child.notice.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return heard;
    heard.line.append(buffer, static_cast<std::size_t>(count));
    if (heard.line.ends_with('\n')) return heard;
  }
}

}  // namespace sortie::launcher
