// RunnerClient: the launcher's end of the frame stream of a runner, for every verb that talks to a
// runner. It has no loops and no deadlines; HostSession, CheckHost and the sweep add theirs.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/wire/codec.h"
#include "launcher/host/transport.h"
#include "launcher/supervise/cause.h"

namespace sortie::launcher {

class RunnerClient {
 public:
  using Clock = std::chrono::steady_clock;

  /// `channel`: stdio of a runner that was just started. `clock`: what is already known about the
  /// host's clock.
  explicit RunnerClient(std::unique_ptr<Channel> channel, HostClock clock = {})
      : channel_(std::move(channel)), clock_(clock) {}

  // Each coroutine fails with ErrorCode::lost when the stream ends or after close(). The client
  // must outlive its coroutines.

  /// Writes encoded frames. One write at a time (may overlap a read).
  boost::asio::awaitable<Result<>> write(std::string_view frames) {
    return channel_->write(frames);
  }
  /// Returns the next message of any kind, its texts bounded (host_texts.h). One call at a time.
  /// ErrorCode::protocol if the data is no message.
  boost::asio::awaitable<Result<wire::Message>> receive();
  /// Returns the next message except heartbeats and Hello. A Hello must have our protocol version.
  /// A RunnerError is returned as an error with the matching code.
  boost::asio::awaitable<Result<wire::Message>> answer();
  /// Exchanges Hello. `build`: the expected hash of the runner; a runner of another build refuses.
  boost::asio::awaitable<Result<>> greet(const std::string& build);

  /// The RunnerError that answer() returned as an error, if any.
  const std::optional<wire::RunnerError>& refusal() const { return refusal_; }
  /// The host's clock relative to this machine's, from the messages received so far.
  const HostClock& clock() const { return clock_; }
  /// Time at which bytes were last received, or of touch().
  Clock::time_point last_heard() const { return last_heard_; }
  void touch() { last_heard_ = Clock::now(); }
  /// Whether the stream has ended regularly, that is, without a broken connection.
  bool at_end() const { return at_end_; }
  /// Makes reads and writes in flight fail. Idempotent.
  void close() { channel_->close(); }

 private:
  void grow_or_shrink(std::size_t count);

  std::unique_ptr<Channel> channel_;
  wire::FrameDecoder decoder_;
  std::string buffer_;  // grows and shrinks with the amount of data received
  HostClock clock_;
  std::optional<wire::RunnerError> refusal_;
  bool at_end_ = false;
  Clock::time_point last_heard_ = Clock::now();
};

/// The launcher's first frame.
std::string hello_frame(const std::string& build);
/// ErrorCode::protocol if the runner has another protocol version.
Result<> check_hello(const wire::Hello& hello);

}  // namespace sortie::launcher
