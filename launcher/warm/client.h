// The stream of one client, on the side of the background process (keeper).
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

  /// Reads the single request. ErrorCode::lost if the stream ends before it, ErrorCode::protocol if
  /// it is invalid.
  boost::asio::awaitable<Result<Request>> request();
  /// Reads the bytes after the request, including those received together with it. Returns 0 at the
  /// end.
  boost::asio::awaitable<std::size_t> read_some(std::span<char> buffer);
  /// At most one write may be active. No-op if the client is gone.
  boost::asio::awaitable<void> write(std::shared_ptr<std::string> bytes);
  bool gone() const { return gone_; }
  /// Completes when either side has closed the stream, even while no data is read from it.
  boost::asio::awaitable<void> hung_up();
  void close();

 private:
  std::shared_ptr<Socket> socket_;
  std::string unread_;
  bool gone_ = false;
};

/// Relays the bytes of a client to a runner during one conversation.
struct Talk : std::enable_shared_from_this<Talk> {
  explicit Talk(std::shared_ptr<Client> with) : client(std::move(with)) {}

  void start(const boost::asio::any_io_executor& executor, std::shared_ptr<KeptRunner> runner);
  /// Waits until no bytes of the client are in flight. Must be called after close() of the client.
  boost::asio::awaitable<void> stopped();

  std::shared_ptr<Client> client;
  bool said_goodbye = false;  // Goodbye was written to the runner

 private:
  boost::asio::awaitable<void> carry(std::shared_ptr<KeptRunner> runner);

  wire::FrameScan scan_{wire::goodbye_type()};
  std::optional<boost::asio::steady_timer> running_;  // cancelled at the end
  bool carrying_ = false;
};

}  // namespace sortie::launcher::warm
