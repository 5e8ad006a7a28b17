#include "launcher/terminal/terminal_client.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "common/asio/token.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace {

/// At most PIPE_BUF on Linux: a pipe that is ready for writing accepts this much without blocking.
constexpr std::size_t kOutputPiece = 4096;

asio::posix::stream_descriptor duplicate(const asio::any_io_executor& executor, int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return asio::posix::stream_descriptor(executor);
  return asio::posix::stream_descriptor(executor, copy);
}

}  // namespace

TerminalClient::TerminalClient(asio::any_io_executor executor,
                               std::unique_ptr<TerminalChannel> channel, RawTerminal* terminal,
                               bool escapes)
    : executor_(executor),
      channel_(std::move(channel)),
      terminal_(terminal),
      escapes_(escapes),
      signals_(executor),
      in_(duplicate(executor, STDIN_FILENO)),
      out_(duplicate(executor, STDOUT_FILENO)),
      err_(duplicate(executor, STDERR_FILENO)),
      outputs_(executor),
      others_(executor) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
    if (struct sigaction was{};
        ::sigaction(number, nullptr, &was) == 0 && was.sa_handler != SIG_IGN)
      signals_.add(number);
  if (terminal_ != nullptr)
    for (const int number : {SIGWINCH, SIGTSTP}) signals_.add(number);
}

void TerminalClient::fail_with(Error error) {
  if (!ended_.error && !ended_.signal && !ended_.disconnected) ended_.error = std::move(error);
  channel_->close();
}

asio::awaitable<TerminalClient::Ended> TerminalClient::run() {
  if (terminal_ != nullptr) {
    auto raw = terminal_->set();
    if (!raw) {
      ended_.error = std::move(raw).error();
      co_return ended_;
    }
  }
  others_.spawn(watch_signals());
  others_.spawn(pump_input());
  outputs_.spawn(pump_output(TerminalChannel::Output::out, STDOUT_FILENO));
  outputs_.spawn(pump_output(TerminalChannel::Output::err, STDERR_FILENO));
  co_await outputs_.wait();
  if (!ended_.error && !ended_.signal && !ended_.disconnected) {
    auto status = co_await channel_->wait();
    if (status)
      ended_.status = *status;
    else
      fail_with(std::move(status).error());
  }
  channel_->close();
  signals_.cancel();
  in_.close();
  co_await others_.wait();
  if (terminal_ != nullptr) terminal_->restore();
  co_return ended_;
}

/// Writes all bytes. Waits until `fd` is writable without making it non-blocking, because other
/// processes share it. A descriptor that can not be polled (a file) does not block for long.
asio::awaitable<bool> TerminalClient::put(int fd, std::string bytes) {
  asio::posix::stream_descriptor& watched = fd == STDOUT_FILENO ? out_ : err_;
  std::string_view left = bytes;
  while (!left.empty()) {
    if (watched.is_open())
      co_await watched.async_wait(asio::posix::stream_descriptor::wait_write, kToken);
    // Do not write after the end: the reader may never read again.
    if (ended_.signal || ended_.disconnected) co_return false;
    const ssize_t count = ::write(fd, left.data(), std::min(left.size(), kOutputPiece));
    if (count > 0) left.remove_prefix(static_cast<std::size_t>(count));
    if (count >= 0 || errno == EINTR || errno == EAGAIN) continue;
    if (errno == EPIPE && !ended_.signal)
      ended_.signal = SIGPIPE;
    else
      fail_with(os_error(errno, fd == STDOUT_FILENO ? "write to stdout" : "write to stderr"));
    channel_->close();
    co_return false;
  }
  co_return true;
}

asio::awaitable<void> TerminalClient::pump_output(TerminalChannel::Output output, int fd) {
  std::array<char, 32768> buffer;
  for (;;) {
    const auto count = co_await channel_->read_some(output, buffer);
    if (!count) fail_with(count.error());
    if (!count || *count == 0) co_return;
    const bool taken = co_await put(fd, std::string(buffer.data(), *count));
    if (!taken) co_return;
  }
}

asio::awaitable<void> TerminalClient::pump_input() {
  std::array<char, 16384> buffer;
  while (in_.is_open()) {
    // On another error stdin can not be polled; then reading does not block for long.
    const auto [error] = co_await in_.async_wait(asio::posix::stream_descriptor::wait_read, kToken);
    if (error == asio::error::operation_aborted || !in_.is_open()) co_return;
    const ssize_t count = ::read(in_.native_handle(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) break;  // end of input, or the terminal is gone
    const bool more = co_await take(std::string(buffer.data(), static_cast<std::size_t>(count)));
    if (!more) co_return;
  }
  channel_->end_input();
}

asio::awaitable<bool> TerminalClient::take(std::string typed) {
  std::vector<EscapeFilter::Part> parts;
  if (escapes_)
    parts = filter_.feed(typed);
  else
    parts.push_back({std::move(typed), EscapeFilter::Action::none});
  for (const EscapeFilter::Part& part : parts) {
    if (!part.bytes.empty()) {
      const auto sent = co_await channel_->write(part.bytes);
      if (!sent) co_return false;  // pump_output() reports the error
    }
    if (part.action == EscapeFilter::Action::suspend) suspend();
    if (part.action == EscapeFilter::Action::help)
      co_await put(STDERR_FILENO, std::string(escape_help()));
    if (part.action == EscapeFilter::Action::disconnect) {
      ended_.disconnected = true;
      drop_outputs();
      co_return false;
    }
  }
  co_return true;
}

void TerminalClient::drop_outputs() {
  channel_->close();
  out_.cancel();
  err_.cancel();
}

void TerminalClient::suspend() {
  if (terminal_ == nullptr) return;
  if (auto again = terminal_->suspend(); !again) return fail_with(std::move(again).error());
  if (const auto size = window_size()) channel_->resize(*size);
}

asio::awaitable<void> TerminalClient::watch_signals() {
  for (;;) {
    const auto [error, number] = co_await signals_.async_wait(kToken);
    if (error) co_return;
    if (number == SIGWINCH) {
      if (const auto size = window_size()) channel_->resize(*size);
    } else if (number == SIGTSTP) {
      suspend();
    } else {
      ended_.signal = number;
      drop_outputs();
      co_return;
    }
  }
}

}  // namespace sortie::launcher
