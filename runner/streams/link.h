// A frame stream to a peer: the launcher (stdin and stdout) or sortie-pmix (a socket pair).
// Messages are written in the order of send(). Only when none is queued, chunks of rank output are
// pulled from a source, so that the queue in memory stays small.
#pragma once

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner {

/// How long the runner waits for its last frames to be written before it ends.
inline constexpr std::chrono::seconds kFlushTimeout{2};

class Link {
 public:
  using Source = std::function<std::optional<wire::Output>()>;

  explicit Link(boost::asio::io_context& io) : in_(io), out_(io), wake_(io), idle_(io) {}

  /// Takes ownership of the two descriptors (pipes or sockets). Error: one is a file or closed.
  Result<> open(Fd in, Fd out);

  /// Same, for another peer. Drops what is queued for the old one. Spawn write_loop() again.
  Result<> reopen(Fd in, Fd out);
  /// Incremented for each peer. A coroutine compares it to find out whether it waited for an
  /// earlier one.
  unsigned generation() const { return generation_; }
  int in() { return in_.native_handle(); }
  int out() { return out_.native_handle(); }
  /// Gives up ownership of the descriptors, for use by another process. The link is then broken.
  std::pair<Fd, Fd> release();

  /// The next message; nullopt at the end of the stream. ErrorCode::protocol or lost.
  boost::asio::awaitable<Result<std::optional<wire::Message>>> read();
  /// Whether unread bytes are available.
  bool readable() const;
  /// When the last message was received.
  std::chrono::steady_clock::time_point last_received() const { return last_received_; }
  void touch() { last_received_ = std::chrono::steady_clock::now(); }
  /// Excludes this much of the time since then from the peer's silence.
  void excuse(std::chrono::steady_clock::duration time) {
    last_received_ = std::min(std::chrono::steady_clock::now(), last_received_ + time);
  }

  void send(const wire::Message& message);
  /// Sets the source of output chunks. Call wake() when it may have one.
  void set_source(Source source) { source_ = std::move(source); }
  void wake() { wake_.notify(); }
  std::size_t queued_bytes() const { return queued_bytes_; }

  /// Writes until the peer is gone. Spawn once per peer.
  boost::asio::awaitable<void> write_loop();
  /// Waits until the queue is written, the peer is gone, or `limit` has passed.
  boost::asio::awaitable<void> flush(std::chrono::steady_clock::duration limit);
  bool broken() const { return broken_; }
  void close();

 private:
  std::string take_bytes();

  boost::asio::posix::stream_descriptor in_, out_;
  wire::FrameDecoder decoder_;
  std::chrono::steady_clock::time_point last_received_ = std::chrono::steady_clock::now();
  std::deque<std::string> queue_;
  std::size_t queued_bytes_ = 0;
  Source source_;
  Wakeup wake_, idle_;
  unsigned generation_ = 0;
  bool writing_ = false;
  bool broken_ = false;
};

}  // namespace sortie::runner
