#include "launcher/control/detach.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/command_name.h"
#include "common/base/exit_code.h"
#include "common/base/process_status.h"
#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

constexpr int kNoticeFd = 3;
volatile std::sig_atomic_t pending_signal = 0;

void note_signal(int number) {
  pending_signal = number;
}

/// In the child: a session of its own, nothing inherited but the standard descriptors and `pipe`.
[[noreturn]] void become_supervisor(Fd pipe, const std::function<int(StartNotice&)>& supervise) {
  ::setsid();
  std::signal(SIGHUP, SIG_IGN);
  if (pipe.get() != kNoticeFd) ::dup2(pipe.get(), kNoticeFd);
  ::fcntl(kNoticeFd, F_SETFD, FD_CLOEXEC);
  pipe.release();
  ::close_range(kNoticeFd + 1, ~0u, 0);
  int code = kExitFailed;
  try {
    StartNotice notice{Fd(kNoticeFd)};
    code = supervise(notice);
    notice.failed(code, "");  // where nobody has said anything yet
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sortie: internal error: %s\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

/// From before the fork, so that none comes between it and who passes them on.
sigset_t block_signals() {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&blocked, number);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  return before;
}

/// What the child says, until it says no more; signals of this process go on to it.
std::string listen(int pipe, pid_t child, const sigset_t& before) {
  struct sigaction action {};
  action.sa_handler = note_signal;
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
  std::string text;
  for (;;) {
    if (pending_signal != 0) {
      ::kill(child, pending_signal);
      pending_signal = 0;
    }
    pollfd polled = {pipe, POLLIN, 0};
    if (::ppoll(&polled, 1, nullptr, &before) < 0) continue;
    char buffer[4096];
    const ssize_t count = ::read(pipe, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
    if (text.ends_with('\n')) return text;
  }
}

}  // namespace

Result<> StartNotice::leave_terminal(const std::filesystem::path& run) {
  const std::string path = (run / "supervisor.log").string();
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Fd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!null || !log) return std::unexpected(os_error(errno, path));
  ::dup2(null.get(), 0);
  ::dup2(log.get(), 1);
  ::dup2(log.get(), 2);
  return {};
}

void StartNotice::started(const std::string& run_id) {
  const nlohmann::json line = {{"started", true}, {"run", run_id}};
  say(line.dump());
}

void StartNotice::failed(int exit_code, const std::string& text) {
  const nlohmann::json line = {{"started", false}, {"exit_code", exit_code}, {"text", text}};
  say(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void StartNotice::say(const std::string& line) {
  if (!pipe_) return;
  const std::string text = line + "\n";
  // Where the parent is gone already there is nobody to tell.
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(pipe_.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    done += static_cast<std::size_t>(count);
  }
  pipe_.reset();
}

int run_detached(const std::function<int(StartNotice&)>& supervise, bool announce) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    fmt::print(stderr, "sortie: {}\n", os_error(errno, "pipe").message);
    return kExitFailed;
  }
  Fd in(ends[0]), out(ends[1]);
  const sigset_t before = block_signals();
  const pid_t child = ::fork();
  if (child < 0) {
    fmt::print(stderr, "sortie: {}\n", os_error(errno, "fork").message);
    return kExitFailed;
  }
  if (child == 0) {
    in.reset();
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    become_supervisor(std::move(out), supervise);
  }
  out.reset();
  const nlohmann::json said =
      nlohmann::json::parse(listen(in.get(), child, before), nullptr, /*allow_exceptions=*/false);
  if (said.is_object() && said.value("started", false)) {
    if (!announce) return kExitOk;
    const std::string id = said.value("run", "");
    fmt::print("{}\n", id);
    std::fflush(stdout);
    fmt::print(stderr,
               "  {0} attach {1}    its output, live; Ctrl-C leaves it running\n"
               "  {0} status {1}    its hosts, ranks and training\n"
               "  {0} stop {1}      end it\n",
               command_line({}), id);
    return kExitOk;
  }
  if (said.is_object()) {
    if (const std::string text = said.value("text", ""); !text.empty())
      fmt::print(stderr, "{}\n", printable_lines(text));
    return said.value("exit_code", kExitFailed);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  fmt::print(stderr,
             "sortie: the supervisor ended before its ranks had started ({}); the latest "
             "supervisor.log in the run folder may say why\n",
             ProcessStatus::from_wait_status(status).to_string());
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : kExitFailed;
}

}  // namespace sortie::launcher
