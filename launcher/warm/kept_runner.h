// A kept connection and a persistent runner on it: the keeper's side of common/wire/serving.h. Used
// on the I/O thread only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/wire/serving.h"
#include "launcher/host/transport.h"

namespace sortie::launcher::warm {

using Clock = std::chrono::steady_clock;

/// One connection to a host. Closed with its last runner or session.
struct Line {
  std::string host, key, address;  // address: "user@host:port"
  std::unique_ptr<Connection> connection;
  std::uint64_t bytes = 0;  // of its runners' streams, both directions
  int runners = 0;          // including sessions and runners being started
  int busy = 0;             // runners in a conversation, and sessions
  bool closed = false;

  /// Adds to `busy`. The connection rests (Connection::rest) while it is 0.
  void count_busy(int more);
  void close();
};

class KeptRunner : public std::enable_shared_from_this<KeptRunner> {
 public:
  enum class State { idle, busy, closed };
  /// Receives bytes of a conversation. Completes when the reader has accepted them (back-pressure).
  using Sink = std::function<boost::asio::awaitable<void>(std::shared_ptr<std::string> bytes)>;

  /// `channel`: stdio of a persistent runner that has just been started.
  KeptRunner(boost::asio::any_io_executor executor, std::shared_ptr<Line> line,
             std::unique_ptr<Channel> channel, std::chrono::milliseconds ping_interval);
  ~KeptRunner();
  KeptRunner(const KeptRunner&) = delete;
  KeptRunner& operator=(const KeptRunner&) = delete;
  /// Starts to read from the runner.
  void start();

  State state() const { return state_; }
  Line& line() { return *line_; }
  const std::shared_ptr<Line>& shared_line() const { return line_; }
  /// Whether the process of the conversation has ended, or the runner is closed.
  bool is_over() const { return end_ || state_ != State::busy; }
  /// Makes a busy runner close at the end of its conversation.
  void keep_no_longer() { persist_ = std::chrono::milliseconds(0); }
  /// When it was last used, and until when it stays. Valid while it is idle.
  Clock::time_point idle_since() const { return idle_since_; }
  Clock::time_point until() const { return idle_since_ + persist_; }

  /// Begins a conversation on an idle runner and waits for its confirmation. Returns false if it
  /// does not confirm within `limit`; it is then closed. `persist`: how long the runner stays after
  /// the conversation.
  boost::asio::awaitable<bool> begin(Sink sink, std::chrono::milliseconds persist,
                                     std::chrono::milliseconds limit);
  /// Writes bytes of the conversation to the runner.
  boost::asio::awaitable<Result<>> write(std::shared_ptr<std::string> bytes);
  /// Waits for the end of the conversation, at most until the limit set by hurry(). Returns nullopt
  /// if the runner was closed.
  boost::asio::awaitable<std::optional<wire::ConversationEnd>> ended();
  /// Limits the wait in ended() to `limit` from now.
  void hurry(std::chrono::milliseconds limit);
  /// Makes the runner idle after a conversation that ended with Goodbye, for the next conversation.
  void rest();

  /// Must be called about every second: pings an idle runner when a ping is due, and closes a
  /// runner that did not answer or whose time is over.
  void look(Clock::time_point now);

  std::string stderr_tail() const { return channel_->stderr_tail(); }
  void close(const std::string& why);

 private:
  boost::asio::awaitable<void> read_loop();
  boost::asio::awaitable<void> ping();
  bool take(const wire::FrameScan::Control& control);

  std::shared_ptr<Line> line_;
  std::unique_ptr<Channel> channel_;
  const std::chrono::milliseconds ping_interval_;
  wire::FrameScan scan_;
  Sink sink_;
  State state_ = State::idle;
  bool begun_ = false;
  bool writing_ = false;  // a ping is being written
  std::optional<wire::ConversationEnd> end_;
  Clock::time_point idle_since_ = Clock::now(), heard_ = Clock::now();
  std::optional<Clock::time_point> asked_;
  std::chrono::milliseconds persist_ = std::chrono::minutes(1);
  boost::asio::steady_timer changed_;
  Clock::time_point give_up_ = Clock::time_point::max();
};

}  // namespace sortie::launcher::warm
