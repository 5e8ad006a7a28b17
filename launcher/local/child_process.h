// ChildProcess: a program on this machine in a separate session, with asynchronous stdio.
// ProcessChannel makes it a Channel.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "launcher/host/owned_channel.h"
#include "launcher/host/stderr_tail.h"

namespace sortie::launcher {

/// Effect of close() on the child.
enum class OnClose {
  eof,   // the child sees EOF on stdin and exits by itself
  kill,  // also kills its process group: SIGTERM, SIGKILL one second later
};

/// Shared by the channel and its coroutines. Reaped as soon as it exits.
class ChildProcess : public std::enable_shared_from_this<ChildProcess> {
 public:
  /// Starts a program; `argv[0]` is searched in PATH. `environment`: its variables, "NAME=value";
  /// nullopt: those of this process. ErrorCode::not_found if there is no such program,
  /// ErrorCode::channel if it can not be started.
  static Result<std::shared_ptr<ChildProcess>> start(
      boost::asio::any_io_executor executor, std::vector<std::string> argv, OnClose on_close,
      std::optional<std::vector<std::string>> environment = std::nullopt);
  explicit ChildProcess(const boost::asio::any_io_executor& executor);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  boost::asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer);
  boost::asio::awaitable<Result<>> write(std::string_view bytes);
  boost::asio::awaitable<Result<ProcessStatus>> wait();
  void close();
  std::string stderr_tail() const;
  std::uint64_t bytes_moved() const { return moved_; }
  pid_t pid() const { return pid_; }

 private:
  Error lost(std::string_view what, const boost::system::error_code& why) const;
  static boost::asio::awaitable<void> reap(std::shared_ptr<ChildProcess> self);
  static boost::asio::awaitable<void> collect_stderr(std::shared_ptr<ChildProcess> self);

  // stdin is a socket pair: a write to a command that has exited is an error instead of SIGPIPE.
  boost::asio::local::stream_protocol::socket input_;
  boost::asio::posix::stream_descriptor output_, error_;
  boost::asio::posix::stream_descriptor process_;  // pidfd
  boost::asio::steady_timer reaped_, kill_timer_;
  pid_t pid_ = -1;
  std::optional<ProcessStatus> status_;
  StderrTail stderr_tail_;
  std::uint64_t moved_ = 0;
  OnClose on_close_ = OnClose::eof;
  bool closed_ = false;
};

using ProcessChannel = OwnedChannel<ChildProcess>;

}  // namespace sortie::launcher
