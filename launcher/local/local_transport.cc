#include "launcher/local/local_transport.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <csignal>
#include <optional>

#include "common/base/fd.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::size_t kStderrTail = 64 * 1024;
using Descriptor = asio::posix::stream_descriptor;

struct Pipe {
  Fd read, write;
};

// A child and our ends of its stdio; shared by the channel and the coroutines around it.
struct LocalProcess : std::enable_shared_from_this<LocalProcess> {
  explicit LocalProcess(const asio::any_io_executor& executor)
      : input(executor),
        output(executor),
        error(executor),
        process(executor),
        reaped(executor, std::chrono::steady_clock::time_point::max()) {}

  // stdin is a socket pair: a write to a command that is gone is then an error, never a SIGPIPE.
  asio::local::stream_protocol::socket input;
  Descriptor output;
  Descriptor error;
  Descriptor process;  // pidfd
  asio::steady_timer reaped;
  pid_t pid = -1;
  std::optional<ProcessStatus> status;
  std::string stderr_tail;
  bool closed = false;

  void close() {
    if (closed) return;
    closed = true;
    boost::system::error_code ignored;
    input.close(ignored);
    output.close(ignored);
    error.close(ignored);
    reaped.cancel();
  }

  Error lost(std::string_view what, const boost::system::error_code& why) const {
    if (closed) return {ErrorCode::lost, fmt::format("{}: the channel was closed here", what)};
    return {ErrorCode::lost, fmt::format("{}: {}", what, why.message())};
  }
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return std::unexpected(os_error(errno, "pipe; raise `ulimit -n`", ErrorCode::channel));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

Result<Pipe> make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return std::unexpected(os_error(errno, "socketpair; raise `ulimit -n`", ErrorCode::channel));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

Result<pid_t> spawn(const std::string& command, int input, int output, int error) {
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
  std::string shell = "/bin/sh", option = "-c", text = command;
  char* argv[] = {shell.data(), option.data(), text.data(), nullptr};
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, "/bin/sh", &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed) return std::unexpected(os_error(failed, "start /bin/sh", ErrorCode::channel));
  return pid;
}

asio::awaitable<void> reap(std::shared_ptr<LocalProcess> self) {
  co_await self->process.async_wait(Descriptor::wait_read, asio::as_tuple(asio::use_awaitable));
  int status = 0;
  if (::waitpid(self->pid, &status, WNOHANG) == self->pid)
    self->status = ProcessStatus::from_wait_status(status);
  else
    self->status = ProcessStatus{ProcessStatus::Kind::lost, 0, false};
  self->reaped.cancel();
}

asio::awaitable<void> collect_stderr(std::shared_ptr<LocalProcess> self) {
  std::array<char, 8192> buffer;
  for (;;) {
    auto [error, count] = co_await self->error.async_read_some(asio::buffer(buffer),
                                                               asio::as_tuple(asio::use_awaitable));
    if (error) co_return;
    self->stderr_tail.append(buffer.data(), count);
    if (self->stderr_tail.size() > 2 * kStderrTail)
      self->stderr_tail.erase(0, self->stderr_tail.size() - kStderrTail);
  }
}

class LocalChannel : public Channel {
 public:
  explicit LocalChannel(std::shared_ptr<LocalProcess> process) : process_(std::move(process)) {}
  ~LocalChannel() override { process_->close(); }

  asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) override {
    return read_from(process_, buffer);
  }
  asio::awaitable<Result<>> write(std::string_view bytes) override {
    return write_to(process_, bytes);
  }
  std::string stderr_tail() const override {
    const std::string& tail = process_->stderr_tail;
    return tail.substr(tail.size() > kStderrTail ? tail.size() - kStderrTail : 0);
  }
  asio::awaitable<Result<ProcessStatus>> wait() override { return wait_for(process_); }
  void close() override { process_->close(); }

 private:
  static asio::awaitable<Result<std::size_t>> read_from(std::shared_ptr<LocalProcess> process,
                                                        std::span<char> buffer) {
    auto [error, count] = co_await process->output.async_read_some(
        asio::buffer(buffer.data(), buffer.size()), asio::as_tuple(asio::use_awaitable));
    if (error == asio::error::eof) co_return std::size_t{0};
    if (error) co_return std::unexpected(process->lost("read", error));
    co_return count;
  }
  static asio::awaitable<Result<>> write_to(std::shared_ptr<LocalProcess> process,
                                            std::string_view bytes) {
    auto [error, count] =
        co_await asio::async_write(process->input, asio::buffer(bytes.data(), bytes.size()),
                                   asio::as_tuple(asio::use_awaitable));
    if (error) co_return std::unexpected(process->lost("write", error));
    co_return Result<>{};
  }
  static asio::awaitable<Result<ProcessStatus>> wait_for(std::shared_ptr<LocalProcess> process) {
    while (!process->status && !process->closed)
      co_await process->reaped.async_wait(asio::as_tuple(asio::use_awaitable));
    if (!process->status) co_return std::unexpected(process->lost("wait", {}));
    co_return *process->status;
  }

  std::shared_ptr<LocalProcess> process_;
};

class LocalConnection : public Connection {
 public:
  explicit LocalConnection(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  ~LocalConnection() override { close(); }

  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) override {
    auto process = start(command);
    if (!process) co_return std::unexpected(std::move(process).error());
    processes_.push_back(*process);
    std::unique_ptr<Channel> channel = std::make_unique<LocalChannel>(std::move(*process));
    co_return channel;
  }
  std::string peer_address() const override { return "127.0.0.1"; }
  void close() override {
    closed_ = true;
    for (const auto& weak : processes_)
      if (const auto process = weak.lock()) process->close();
    processes_.clear();
  }

 private:
  Result<std::shared_ptr<LocalProcess>> start(const std::string& command) {
    if (closed_) return fail(ErrorCode::lost, "the connection is closed");
    SORTIE_ASSIGN_OR_RETURN(Pipe input, make_socket_pair());
    SORTIE_ASSIGN_OR_RETURN(Pipe output, make_pipe());
    SORTIE_ASSIGN_OR_RETURN(Pipe error, make_pipe());
    SORTIE_ASSIGN_OR_RETURN(
        const pid_t pid, spawn(command, input.read.get(), output.write.get(), error.write.get()));
    const auto process = std::make_shared<LocalProcess>(executor_);
    process->pid = pid;
    Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd) {
      const int why = errno;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      return std::unexpected(os_error(why, "pidfd_open", ErrorCode::channel));
    }
    ::fcntl(input.write.get(), F_SETFL, O_NONBLOCK);
    process->input.assign(asio::local::stream_protocol(), input.write.release());
    process->output.assign(output.read.release());
    process->error.assign(error.read.release());
    process->process.assign(pidfd.release());
    // Detached, but not adrift: they end with the child and with its stderr.
    asio::co_spawn(executor_, reap(process), asio::detached);
    asio::co_spawn(executor_, collect_stderr(process), asio::detached);
    return process;
  }

  asio::any_io_executor executor_;
  std::vector<std::weak_ptr<LocalProcess>> processes_;
  bool closed_ = false;
};

class LocalTransport : public Transport {
 public:
  explicit LocalTransport(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string) override {
    std::unique_ptr<Connection> connection = std::make_unique<LocalConnection>(executor_);
    co_return connection;
  }

 private:
  asio::any_io_executor executor_;
};

}  // namespace

std::unique_ptr<Transport> make_local_transport(asio::any_io_executor executor) {
  return std::make_unique<LocalTransport>(std::move(executor));
}

}  // namespace sortie::launcher
