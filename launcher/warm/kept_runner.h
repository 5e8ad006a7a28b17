// A connection that is kept, and a runner on it that stays: the background process's end of
// common/wire/serving.h. All of it on the one I/O thread.
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

/// One connection to a host; closed when its last runner is.
struct Line {
  std::string host, key, address;  // address: "user@host:port"
  std::unique_ptr<Connection> connection;
  std::uint64_t bytes = 0;  // of its runners' streams, both ways
  int runners = 0;
  int busy = 0;
  bool closed = false;

  /// Rests while none of its runners converses.
  void count_busy(int more);
  void close();
};

class KeptRunner : public std::enable_shared_from_this<KeptRunner> {
 public:
  enum class State { idle, busy, closed };
  /// Takes bytes of a conversation; waits as long as its reader does.
  using Sink = std::function<boost::asio::awaitable<void>(std::shared_ptr<std::string> bytes)>;

  /// `channel`: stdio of a runner that has just been started to stay.
  KeptRunner(boost::asio::any_io_executor executor, std::shared_ptr<Line> line,
             std::unique_ptr<Channel> channel, std::chrono::milliseconds ping_interval);
  ~KeptRunner();
  KeptRunner(const KeptRunner&) = delete;
  KeptRunner& operator=(const KeptRunner&) = delete;
  /// Reads from now on.
  void start();

  State state() const { return state_; }
  Line& line() { return *line_; }
  const std::shared_ptr<Line>& shared_line() const { return line_; }
  /// The conversation's process has ended, or the runner is closed.
  bool is_over() const { return end_ || state_ != State::busy; }
  /// Of one that converses: it will be closed when that is over.
  void keep_no_longer() { persist_ = std::chrono::milliseconds(0); }
  /// When it was last used, and until when it stays; while it is idle.
  Clock::time_point idle_since() const { return idle_since_; }
  Clock::time_point until() const { return idle_since_ + persist_; }

  /// An idle runner begins a conversation, and says so itself. False: it did not within `limit`,
  /// and is closed. `persist`: how long it stays afterwards.
  boost::asio::awaitable<bool> begin(Sink sink, std::chrono::milliseconds persist,
                                     std::chrono::milliseconds limit);
  /// Bytes of the conversation towards the runner.
  boost::asio::awaitable<Result<>> write(std::shared_ptr<std::string> bytes);
  /// Waits for the conversation's end, at most until `limit` (which may come nearer, see hurry()).
  /// None: the runner is closed.
  boost::asio::awaitable<std::optional<wire::ConversationEnd>> ended();
  /// Whoever waits in ended() waits no longer than `limit` from now.
  void hurry(std::chrono::milliseconds limit);
  /// The conversation is over, and its last word was Goodbye: it may have another.
  void rest();

  /// Called every second or so: asks an idle runner for a sign of life when it is time to, and
  /// closes one that did not answer, or whose time is over.
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
  bool writing_ = false;  // a ping is on its way
  std::optional<wire::ConversationEnd> end_;
  Clock::time_point idle_since_ = Clock::now(), heard_ = Clock::now();
  std::optional<Clock::time_point> asked_;
  std::chrono::milliseconds persist_ = std::chrono::minutes(1);
  boost::asio::steady_timer changed_;
  Clock::time_point give_up_ = Clock::time_point::max();
};

}  // namespace sortie::launcher::warm
