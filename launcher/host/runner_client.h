// RunnerClient: the launcher's end of a runner's stream of frames, for every verb that talks to
// one. It has no loops and no deadlines; HostSession, CheckHost and the sweep add theirs.
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

  /// `channel`: stdio of a runner that has just been started.
  /// `clock`: what is known already of the host's clock.
  explicit RunnerClient(std::unique_ptr<Channel> channel, HostClock clock = {})
      : channel_(std::move(channel)), clock_(clock) {}

  // Each returns with ErrorCode::lost when the stream ends or after close(). The client must
  // outlive what it is asked for.

  /// Encoded frames. One write at a time (may overlap a read).
  boost::asio::awaitable<Result<>> write(std::string_view frames) {
    return channel_->write(frames);
  }
  /// The next message of any kind, its texts bounded (host_texts.h). One at a time.
  /// ErrorCode::protocol when it is none.
  boost::asio::awaitable<Result<wire::Message>> receive();
  /// The next message that answers something: heartbeats are skipped, Hello must be of our version
  /// and is skipped too, and a RunnerError becomes an error of its class.
  boost::asio::awaitable<Result<wire::Message>> answer();
  /// Hello both ways. `build`: the runner's hash; it refuses to be another one.
  boost::asio::awaitable<Result<>> greet(const std::string& build);

  /// The RunnerError that answer() returned as an error, if any.
  const std::optional<wire::RunnerError>& refusal() const { return refusal_; }
  std::string stderr_tail() const { return channel_->stderr_tail(); }
  /// The host's clock against ours, from what it has said so far.
  const HostClock& clock() const { return clock_; }
  /// When bytes came in last.
  Clock::time_point last_heard() const { return last_heard_; }
  void touch() { last_heard_ = Clock::now(); }
  /// The runner has ended in good order: its stream did, and the connection had not broken.
  bool at_end() const { return at_end_; }
  /// Ends reads and writes in flight. Idempotent.
  void close() { channel_->close(); }

 private:
  void grow_or_shrink(std::size_t count);

  std::unique_ptr<Channel> channel_;
  wire::FrameDecoder decoder_;
  std::string buffer_;  // as large as the host has much to say
  HostClock clock_;
  std::optional<wire::RunnerError> refusal_;
  bool at_end_ = false;
  Clock::time_point last_heard_ = Clock::now();
};

/// The frame that a launcher begins with.
std::string hello_frame(const std::string& build);
/// ErrorCode::protocol where the runner is of another version.
Result<> check_hello(const wire::Hello& hello);

}  // namespace sortie::launcher
