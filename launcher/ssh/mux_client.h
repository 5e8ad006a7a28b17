// MuxClient: one connection to the socket of an OpenSSH master, from the greeting to the session or
// stream that it carries. A master accepts one session or stream per connection.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "launcher/ssh/mux_wire.h"

namespace sortie::launcher::ssh {

/// Shared by its owner and the coroutines running in it. Used on the I/O thread only.
class MuxClient : public std::enable_shared_from_this<MuxClient> {
 public:
  using Clock = std::chrono::steady_clock;
  /// Id of the request that open() sends.
  static constexpr std::uint32_t kOpenRequest = 2;

  /// Connects, sends hello and an alive check. ErrorCode::not_found: no socket exists, or no
  /// process listens on it. timeout: the listener does not answer. protocol: it is not a master of
  /// version 4. config: it belongs to another user.
  static boost::asio::awaitable<Result<std::shared_ptr<MuxClient>>> connect(
      boost::asio::any_io_executor executor, std::filesystem::path socket,
      Clock::time_point deadline);
  explicit MuxClient(const boost::asio::any_io_executor& executor) : socket_(executor) {}
  MuxClient(const MuxClient&) = delete;
  MuxClient& operator=(const MuxClient&) = delete;

  /// Sends `request` (mux_new_session, mux_stdio_forward) with its descriptors, and waits until the
  /// server has opened the session or stream. ErrorCode::channel: it was refused. timeout. lost:
  /// the master has exited.
  boost::asio::awaitable<Result<>> open(std::string request, std::vector<Fd> descriptors,
                                        Clock::time_point deadline);
  /// Reads the next message of the session or stream. ErrorCode::lost: the master has closed it or
  /// exited.
  boost::asio::awaitable<Result<MuxMessage>> next();
  /// Closes the session or stream: the command sees EOF on stdin. Idempotent.
  void close();

  /// Process id of the master.
  pid_t master() const { return master_; }

 private:
  // Closes the connection at the deadline.
  struct Deadline;

  boost::asio::awaitable<Result<>> greet();
  boost::asio::awaitable<Result<>> send(std::string_view bytes);
  boost::asio::awaitable<Result<>> send_descriptor(const Fd& descriptor);
  boost::asio::awaitable<Result<std::string>> read(std::size_t size);
  Error broken(std::string_view what) const;

  boost::asio::local::stream_protocol::socket socket_;
  pid_t master_ = 0;
  bool late_ = false;
};

}  // namespace sortie::launcher::ssh
