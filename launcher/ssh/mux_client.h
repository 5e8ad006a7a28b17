// MuxClient: one connection to the socket of an OpenSSH master, from the greeting to the session or
// the stream that it carries. A master takes one of them per connection.
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

/// Shared by its owner and the coroutines inside it; on the I/O thread only.
class MuxClient : public std::enable_shared_from_this<MuxClient> {
 public:
  using Clock = std::chrono::steady_clock;
  /// The id of the request that open() sends.
  static constexpr std::uint32_t kOpenRequest = 2;

  /// Connects, says hello and asks whether the master is alive. not_found: there is no socket, or
  /// nobody listens at it; timeout: somebody does and says nothing; protocol: that is no master of
  /// version 4; config: it is another user's.
  static boost::asio::awaitable<Result<std::shared_ptr<MuxClient>>> connect(
      boost::asio::any_io_executor executor, std::filesystem::path socket,
      Clock::time_point deadline);
  explicit MuxClient(const boost::asio::any_io_executor& executor) : socket_(executor) {}
  MuxClient(const MuxClient&) = delete;
  MuxClient& operator=(const MuxClient&) = delete;

  /// Sends `request` (mux_new_session, mux_stdio_forward) and the descriptors that belong to it,
  /// and waits until the server has opened what is asked for. ErrorCode::channel: it refuses;
  /// timeout; lost: the master has gone.
  boost::asio::awaitable<Result<>> open(std::string request, std::vector<Fd> descriptors,
                                        Clock::time_point deadline);
  /// The next message of what was opened. lost: the master has ended it, or has gone.
  boost::asio::awaitable<Result<MuxMessage>> next();
  /// Ends what was opened: the command sees the end of its stdin. Idempotent.
  void close();

  /// The master's process.
  pid_t master() const { return master_; }

 private:
  // Closes the connection when the time is over.
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
