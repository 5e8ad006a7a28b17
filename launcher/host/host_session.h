// HostSession: the launcher's side of the conversation with one host, from connect() to Goodbye.
// Used on the I/O thread. Held by shared_ptr, because its coroutines may outlive a caller that
// gives up on it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/schema.h"
#include "launcher/host/bootstrap.h"
#include "launcher/host/runner_client.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

/// Progress timeout of a host during a file transfer or an image pull
/// (HostSession::expect_progress()). The runner reports progress every few seconds, also while it
/// compares files or a container engine pulls.
inline std::chrono::milliseconds work_patience(const config::RunnerConfig& runner) {
  return 30 * runner.heartbeat_timeout;
}

class HostSession : public std::enable_shared_from_this<HostSession> {
 public:
  /// Callbacks, called on the I/O thread after start(), and never after close() has returned.
  struct Listener {
    std::function<void(wire::Message)> on_message;  // any message except heartbeats
    std::function<void(Error)> on_lost;             // the connection is lost; called once
    std::function<void(const wire::Heartbeat&)> on_beat = {};
    /// What the runner ends by itself when it loses the launcher, for the message of on_lost.
    std::string_view job = "its ranks end by themselves";
  };

  HostSession(boost::asio::any_io_executor executor, std::string host,
              const config::RunnerConfig& runner);

  const std::string& host() const { return host_; }
  /// Address at which the host was reached; empty if unknown.
  const std::string& address() const { return address_; }
  /// The host's clock relative to this machine's, from the messages received so far.
  const HostClock& clock() const { return client_ ? client_->clock() : known_clock_; }
  /// Number of RankEvents received from this host since its job began.
  std::uint64_t events_taken() const { return events_taken_; }
  /// Takes over the clock estimate of `lost`, a session with the same host whose connection broke.
  void follow(const HostSession& lost) { known_clock_ = lost.clock(); }

  /// Connects and starts the runner. Both references must outlive the call. The error code names
  /// the stage that failed.
  boost::asio::awaitable<Result<>> connect(Transport& transport, const RunnerBinary& binary);

  /// Exchanges Hello, within runner.startup_timeout. Then heartbeats are sent, and messages can be
  /// sent and received with next() before there is a job.
  boost::asio::awaitable<Result<>> greet(std::string expected_build);
  /// Returns the next message that is no heartbeat. Fails if the host sends nothing for
  /// runner.heartbeat_timeout meanwhile. Only between greet() and prepare() or start().
  boost::asio::awaitable<Result<wire::Message>> next();
  /// Sets a progress timeout. From now on the session is lost (ErrorCode::timeout) if, during
  /// next() or drained(), the host sends nothing but heartbeats and accepts no message from here
  /// for `limit`.
  void expect_progress(std::chrono::milliseconds limit);
  /// Waits until at most `bytes` are queued for sending, the runner reads no more, or the session
  /// is closed.
  boost::asio::awaitable<void> drained(std::size_t bytes);

  /// Sends the job and waits until the host is ready to start its ranks, within
  /// runner.startup_timeout. Then heartbeats are sent: other hosts may need longer.
  boost::asio::awaitable<Result<wire::JobReady>> prepare(wire::JobSpec job,
                                                         std::string expected_build);

  /// The same for a job that a runner holds because its launcher or the connection to it was lost.
  /// Also waits for the heartbeat that the runner sends next, so that clock() is known before the
  /// ends of ranks are read. Then heartbeats are sent.
  boost::asio::awaitable<Result<>> adopt(wire::Adopt order, std::string expected_build);
  /// The RunnerError with which the runner refused prepare() or adopt(), if any.
  const std::optional<wire::RunnerError>& refusal() const { return refusal_; }

  /// After this call delivers messages to `listener`, none within it, and declares the host lost if
  /// it sends nothing for runner.heartbeat_timeout.
  void start(Listener listener);

  /// Queues a message. No-op if the session is closed, or if the runner reads no more.
  void send(const wire::Message& message);
  /// The same for an encoded frame (wire::encode) that is sent to several hosts, which share its
  /// bytes.
  void send(std::shared_ptr<const std::string> frame);

  /// Sends Goodbye to a runner that has finished. When the runner has ended, on_lost is called as
  /// usual, and the connection is returned to its transport (Connection::release).
  void say_goodbye();

  /// Closes the connection: the runner sees EOF and ends its ranks. Idempotent.
  void close();
  bool closed() const { return closed_; }
  /// Time at which bytes were last received from the runner; the clock's epoch if there is no
  /// runner yet.
  std::chrono::steady_clock::time_point last_heard() const;
  /// Whether the runner's binary is being copied to the host.
  bool pushing() const { return pushing_ && !closed_; }

 private:
  struct Outgoing {
    std::shared_ptr<const std::string> frame;
    bool counts = true;  // whether writing it counts as progress
  };
  void enqueue(Outgoing outgoing);
  boost::asio::awaitable<Result<>> hand_over(wire::Message order, std::string build);
  /// Sends `order`, preceded by Hello unless greet() was called, and waits for its answer.
  boost::asio::awaitable<Result<wire::Message>> open(wire::Message order, std::string build);
  boost::asio::awaitable<Result<>> hear_clock();
  boost::asio::awaitable<Result<wire::Message>> receive();
  boost::asio::awaitable<void> read_loop();
  boost::asio::awaitable<void> write_loop();
  boost::asio::awaitable<void> hear_last_words();
  boost::asio::awaitable<void> watch_loop();
  void keep_alive();
  bool lost_patience() const;
  void lost(Error error);
  void end(bool may_release);

  boost::asio::any_io_executor executor_;
  const std::string host_;
  const config::RunnerConfig& runner_;
  std::string address_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<RunnerClient> client_;  // set once the runner has been started
  std::deque<Outgoing> outgoing_;
  std::size_t outgoing_bytes_ = 0;
  boost::asio::steady_timer outgoing_ready_, watch_timer_, drained_;
  std::optional<Listener> listener_;
  std::optional<Error> lost_early_;  // lost before start()
  std::optional<wire::RunnerError> refusal_;
  std::optional<wire::Message> early_;  // read by adopt(), for the listener
  HostClock known_clock_;               // used before there is a client
  std::uint64_t events_taken_ = 0;
  bool greeted_ = false;                   // the loops are running
  bool reading_ = false;                   // next() is waiting: silence counts
  bool draining_ = false;                  // drained() is waiting
  std::chrono::milliseconds patience_{0};  // of expect_progress(); 0 = no limit
  std::chrono::steady_clock::time_point last_progress_;
  bool closed_ = false, pushing_ = false;
  bool goodbye_ = false;        // Goodbye was sent
  bool reads_no_more_ = false;  // a write has failed
};

}  // namespace sortie::launcher
