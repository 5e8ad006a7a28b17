// MuxSession: a command on a host through an OpenSSH master. The master relays the bytes between
// the host and the three descriptors that it got. Its socket carries the exit code.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "launcher/host/owned_channel.h"
#include "launcher/host/stderr_tail.h"
#include "launcher/ssh/mux_client.h"

namespace sortie::launcher::ssh {

/// Shared by the channel and the coroutines running in it. Used on the I/O thread only.
class MuxSession : public std::enable_shared_from_this<MuxSession> {
 public:
  /// Starts `command` through the user's login shell. `on_address` is called at most once, with the
  /// address at which the host's sshd was reached, empty if unknown. Errors as MuxClient::open().
  static boost::asio::awaitable<Result<std::shared_ptr<MuxSession>>> start(
      boost::asio::any_io_executor executor, std::shared_ptr<MuxClient> client,
      std::filesystem::path socket, std::string command,
      std::function<void(std::string)> on_address, MuxClient::Clock::time_point deadline);
  MuxSession(const boost::asio::any_io_executor& executor, std::shared_ptr<MuxClient> client,
             std::filesystem::path socket, std::function<void(std::string)> on_address);
  MuxSession(const MuxSession&) = delete;
  MuxSession& operator=(const MuxSession&) = delete;

  boost::asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer);
  boost::asio::awaitable<Result<>> write(std::string_view bytes);
  boost::asio::awaitable<Result<ProcessStatus>> wait();
  void close();
  std::string stderr_tail() const;
  std::uint64_t bytes_moved() const { return moved_; }

 private:
  static boost::asio::awaitable<void> watch(std::shared_ptr<MuxSession> self);
  static boost::asio::awaitable<void> collect_stderr(std::shared_ptr<MuxSession> self);
  boost::asio::awaitable<Result<std::size_t>> read_output(std::span<char> buffer);
  boost::asio::awaitable<void> read_first_line();
  static boost::asio::awaitable<bool> ended(std::shared_ptr<MuxSession> self);
  Error lost(std::string_view what) const;

  boost::asio::any_io_executor executor_;
  std::shared_ptr<MuxClient> client_;
  std::filesystem::path socket_;
  std::function<void(std::string)> on_address_;
  boost::asio::local::stream_protocol::socket input_;
  boost::asio::posix::stream_descriptor output_, error_;
  boost::asio::steady_timer ended_;  // cancelled when over_ is set
  std::optional<ProcessStatus> status_;
  std::string first_;   // output around the line with the address, not yet read by the caller
  bool begun_ = false;  // that line was received, or none will be
  bool over_ = false;   // the master has closed the session
  bool master_gone_ = false;
  bool closed_ = false;
  StderrTail stderr_tail_;
  std::uint64_t moved_ = 0;
};

using MuxChannel = OwnedChannel<MuxSession>;

}  // namespace sortie::launcher::ssh
