// The background process's end of one client's stream.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <memory>
#include <span>
#include <string>

#include "common/wire/serving.h"
#include "launcher/warm/kept_runner.h"
#include "launcher/warm/request.h"

namespace sortie::launcher::warm {

class Client : public std::enable_shared_from_this<Client> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  explicit Client(std::shared_ptr<Socket> socket) : socket_(std::move(socket)) {}

  /// The one request. ErrorCode::lost when the stream ends before.
  boost::asio::awaitable<Result<Request>> request();
  /// What follows it; 0 at the end. Bytes that came with the request first.
  boost::asio::awaitable<std::size_t> read_some(std::span<char> buffer);
  /// One at a time. Nothing happens when the client is gone.
  boost::asio::awaitable<void> write(std::shared_ptr<std::string> bytes);
  bool gone() const { return gone_; }
  /// Returns when the client has closed its end, or this one is closed here; also while it is not
  /// read from.
  boost::asio::awaitable<void> hung_up();
  void close();

 private:
  std::shared_ptr<Socket> socket_;
  std::string unread_;
  bool gone_ = false;
};

/// One conversation between a client and a runner: what carries the client's bytes.
struct Talk : std::enable_shared_from_this<Talk> {
  explicit Talk(std::shared_ptr<Client> with) : client(std::move(with)) {}

  void start(const boost::asio::any_io_executor& executor, std::shared_ptr<KeptRunner> runner);
  /// Waits until nothing of the client's is on its way any more; after close() of the client.
  boost::asio::awaitable<void> stopped();

  std::shared_ptr<Client> client;
  bool said_goodbye = false;  // and the runner has it

 private:
  boost::asio::awaitable<void> carry(std::shared_ptr<KeptRunner> runner);

  wire::FrameScan scan_{wire::goodbye_type()};
  std::optional<boost::asio::steady_timer> running_;  // cancelled at the end
  bool carrying_ = false;
};

}  // namespace sortie::launcher::warm
