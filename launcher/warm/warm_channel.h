// A conversation with a runner of the background process, as a Channel.
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

/// One stream to the background process. Shared by the channel and the coroutines running in it.
class WarmStream : public std::enable_shared_from_this<WarmStream> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  explicit WarmStream(Socket socket) : socket_(std::move(socket)) {}

  struct Answer {
    Record type{};
    std::string payload;
  };
  /// Reads the next record. ErrorCode::lost at the end of the stream. ErrorCode::timeout after
  /// `limit` (0 = no limit), which also closes the stream.
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
  std::string data_;  // received, not yet read from read_ on
  std::size_t read_ = 0;
  std::string errors_;
  std::optional<ProcessStatus> ended_;
  bool closed_ = false;
};

using WarmChannel = OwnedChannel<WarmStream>;

}  // namespace sortie::launcher::warm
