#include "launcher/local/child_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <csignal>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/c_strings.h"
#include "common/base/fd.h"
#include "common/base/pipe.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::seconds kUntilKill{1};
using Descriptor = asio::posix::stream_descriptor;

Result<pid_t> start_program(const std::vector<std::string>& words,
                            const std::optional<std::vector<std::string>>& variables, int input,
                            int output, int error) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, input, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, error, 2);
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> given;
  if (variables) given = c_strings(*variables);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, words.front().c_str(), &actions, &attributes,
                                    c_strings(words).data(), variables ? given.data() : environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed)
    return std::unexpected(os_error(failed, "start " + words.front(),
                                    failed == ENOENT ? ErrorCode::not_found : ErrorCode::channel));
  return pid;
}

}  // namespace

ChildProcess::ChildProcess(const asio::any_io_executor& executor)
    : input_(executor),
      output_(executor),
      error_(executor),
      process_(executor),
      reaped_(executor, std::chrono::steady_clock::time_point::max()),
      kill_timer_(executor) {}

// The child can only be running here if the I/O loop has ended before it: reap() owns this object.
ChildProcess::~ChildProcess() {
  if (pid_ < 0 || status_) return;
  if (on_close_ == OnClose::kill) ::kill(-pid_, SIGKILL);
  for (int i = 0; i < 50 && ::waitpid(pid_, nullptr, WNOHANG) == 0; ++i) {
    if (on_close_ != OnClose::kill) return;
    ::usleep(2000);
  }
}

Result<std::shared_ptr<ChildProcess>> ChildProcess::start(
    asio::any_io_executor executor, std::vector<std::string> argv, OnClose on_close,
    std::optional<std::vector<std::string>> environment) {
  SORTIE_ASSIGN_OR_RETURN(Pipe input, make_socket_pair(ErrorCode::channel));
  SORTIE_ASSIGN_OR_RETURN(Pipe output, make_pipe(ErrorCode::channel));
  SORTIE_ASSIGN_OR_RETURN(Pipe error, make_pipe(ErrorCode::channel));
  SORTIE_ASSIGN_OR_RETURN(const pid_t pid, start_program(argv, environment, input.read.get(),
                                                         output.write.get(), error.write.get()));
  const auto child = std::make_shared<ChildProcess>(executor);
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    const int why = errno;
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return std::unexpected(os_error(why, "pidfd_open", ErrorCode::channel));
  }
  child->pid_ = pid;
  child->on_close_ = on_close;
  ::fcntl(input.write.get(), F_SETFL, O_NONBLOCK);
  child->input_.assign(asio::local::stream_protocol(), input.write.release());
  child->output_.assign(output.read.release());
  child->error_.assign(error.read.release());
  child->process_.assign(pidfd.release());
  // They complete when the child exits and its stderr is closed.
  spawn(executor, reap(child));
  spawn(executor, collect_stderr(child));
  return child;
}

asio::awaitable<void> ChildProcess::reap(std::shared_ptr<ChildProcess> self) {
  co_await self->process_.async_wait(Descriptor::wait_read, kToken);
  int status = 0;
  if (::waitpid(self->pid_, &status, WNOHANG) == self->pid_)
    self->status_ = ProcessStatus::from_wait_status(status);
  else
    self->status_ = ProcessStatus{ProcessStatus::Kind::lost, 0, false};
  self->kill_timer_.cancel();
  self->reaped_.cancel();
}

asio::awaitable<void> ChildProcess::collect_stderr(std::shared_ptr<ChildProcess> self) {
  std::array<char, 4096> buffer;
  for (;;) {
    auto [error, count] = co_await self->error_.async_read_some(asio::buffer(buffer), kToken);
    if (error) co_return;
    self->stderr_tail_.add({buffer.data(), count});
  }
}

std::string ChildProcess::stderr_tail() const {
  return stderr_tail_.text();
}

Error ChildProcess::lost(std::string_view what, const boost::system::error_code& why) const {
  if (closed_) return {ErrorCode::lost, fmt::format("{}: the channel was closed here", what)};
  return {ErrorCode::lost, fmt::format("{}: {}", what, why.message())};
}

asio::awaitable<Result<std::size_t>> ChildProcess::read_some(std::span<char> buffer) {
  const auto self = shared_from_this();
  auto [error, count] =
      co_await output_.async_read_some(asio::buffer(buffer.data(), buffer.size()), kToken);
  if (error == asio::error::eof) co_return std::size_t{0};
  if (error) co_return std::unexpected(lost("read", error));
  moved_ += count;
  co_return count;
}

asio::awaitable<Result<>> ChildProcess::write(std::string_view bytes) {
  const auto self = shared_from_this();
  while (!bytes.empty()) {
    auto [error, count] =
        co_await input_.async_write_some(asio::buffer(bytes.data(), bytes.size()), kToken);
    if (error) co_return std::unexpected(lost("write", error));
    moved_ += count;
    bytes.remove_prefix(count);
  }
  co_return Result<>{};
}

asio::awaitable<Result<ProcessStatus>> ChildProcess::wait() {
  const auto self = shared_from_this();
  while (!status_ && !closed_) co_await reaped_.async_wait(kToken);
  if (!status_) co_return std::unexpected(lost("wait", {}));
  co_return *status_;
}

void ChildProcess::close() {
  if (closed_) return;
  closed_ = true;
  boost::system::error_code ignored;
  input_.close(ignored);
  output_.close(ignored);
  error_.close(ignored);
  reaped_.cancel();
  if (on_close_ != OnClose::kill || status_) return;
  ::kill(-pid_, SIGTERM);
  kill_timer_.expires_after(kUntilKill);
  kill_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error && !self->status_) ::kill(-self->pid_, SIGKILL);
  });
}

}  // namespace sortie::launcher
