// A conversation with a runner that the background process keeps, as a Channel.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>

#include "common/wire/frame.h"
#include "launcher/host/owned_channel.h"
#include "launcher/warm/request.h"

namespace sortie::launcher::warm {

/// One stream to the background process; shared by the channel and the coroutines inside it.
class WarmStream : public std::enable_shared_from_this<WarmStream> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  explicit WarmStream(Socket socket) : socket_(std::move(socket)) {}

  struct Answer {
    Record type{};
    std::string payload;
  };
  /// The next record; ErrorCode::lost at the end of the stream, timeout after `limit` (0: none),
  /// which closes the stream.
  boost::asio::awaitable<Result<Answer>> next(std::chrono::milliseconds limit);

  boost::asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer);
  boost::asio::awaitable<Result<>> write(std::string_view bytes);
  boost::asio::awaitable<Result<ProcessStatus>> wait();
  std::string stderr_tail() const { return errors_; }
  void close();

 private:
  Error lost(std::string_view what) const;

  Socket socket_;
  wire::FrameDecoder decoder_;
  std::string buffer_;
  std::string data_;  // received, not read
  std::size_t read_ = 0;
  std::string errors_;
  std::optional<ProcessStatus> ended_;
  bool closed_ = false;
};

using WarmChannel = OwnedChannel<WarmStream>;

}  // namespace sortie::launcher::warm
