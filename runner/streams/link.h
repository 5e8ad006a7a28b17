// A frame stream to a peer: the launcher (stdin and stdout) or sortie-pmix (a socket pair).
// Messages are written in the order of send(); between them, and only when none waits, chunks of
// rank output are pulled from a source, so that what is queued in memory stays small.
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

/// How long the last frames may take to leave before the runner ends without them.
inline constexpr std::chrono::seconds kFlushTimeout{2};

class Link {
 public:
  using Source = std::function<std::optional<wire::Output>()>;

  explicit Link(boost::asio::io_context& io) : in_(io), out_(io), wake_(io), idle_(io) {}

  /// Takes the two descriptors (pipes or sockets). Error: one is a file or a closed descriptor.
  Result<> open(Fd in, Fd out);

  /// The same again, with another peer: what waited for the old one is forgotten. Spawn write_loop
  /// again.
  Result<> reopen(Fd in, Fd out);
  /// Counts the peers: what a coroutine waited for may be of an earlier one.
  unsigned generation() const { return generation_; }
  int in() { return in_.native_handle(); }
  int out() { return out_.native_handle(); }
  /// Gives the descriptors away, to be used by another process; the link is broken then.
  std::pair<Fd, Fd> release();

  /// The next message, nothing at the end of the stream, or ErrorCode::protocol / lost.
  boost::asio::awaitable<Result<std::optional<wire::Message>>> read();
  /// Whether bytes are waiting to be read.
  bool readable() const;
  /// When the last message came in.
  std::chrono::steady_clock::time_point last_received() const { return last_received_; }
  void touch() { last_received_ = std::chrono::steady_clock::now(); }
  /// So much of the time since then was not the peer's silence.
  void excuse(std::chrono::steady_clock::duration time) {
    last_received_ = std::min(std::chrono::steady_clock::now(), last_received_ + time);
  }

  void send(const wire::Message& message);
  /// Where output chunks come from; wake() when there may be one.
  void set_source(Source source) { source_ = std::move(source); }
  void wake() { wake_.notify(); }
  std::size_t queued_bytes() const { return queued_bytes_; }

  /// Writes until the peer is gone. Spawn once.
  boost::asio::awaitable<void> write_loop();
  /// Waits until everything sent so far is written, the peer is gone, or `limit`.
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
