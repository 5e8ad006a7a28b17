// HostSession: the launcher's side of one host, from connect to goodbye. Lives on the I/O thread;
// held by shared_ptr because its own coroutines outlast a caller that gives up on it.
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
#include <vector>

#include "common/config/schema.h"
#include "launcher/host/bootstrap.h"
#include "launcher/host/runner_client.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

/// Of a transfer or an image: how long a host may do nothing but beat. Its runner says every few
/// seconds how far it is, also while it compares files or an engine pulls.
inline std::chrono::milliseconds work_patience(const config::RunnerConfig& runner) {
  return 30 * runner.heartbeat_timeout;
}

class HostSession : public std::enable_shared_from_this<HostSession> {
 public:
  /// Called on the I/O thread after start(); never after close() returned.
  struct Listener {
    std::function<void(wire::Message)> on_message;  // but heartbeats
    std::function<void(Error)> on_lost;             // the connection is gone; called once
    std::function<void(const wire::Heartbeat&)> on_beat = {};
  };

  HostSession(boost::asio::any_io_executor executor, std::string host,
              const config::RunnerConfig& runner);

  const std::string& host() const { return host_; }
  /// Address at which the host was reached; empty when unknown.
  const std::string& address() const { return address_; }
  /// The host's clock against ours, from what it has said so far.
  const HostClock& clock() const { return client_ ? client_->clock() : known_clock_; }
  /// RankEvents of this host that were received, since its job began.
  std::uint64_t events_taken() const { return events_taken_; }
  /// This one follows `lost`, whose connection broke: the clocks are known already.
  void follow(const HostSession& lost) { known_clock_ = lost.clock(); }
  /// The last kilobytes of the runner's stderr.
  std::string runner_stderr() const;

  /// Connects and starts the runner. References must outlive the call. Errors name the stage by
  /// their code.
  boost::asio::awaitable<Result<>> connect(Transport& transport, const RunnerBinary& binary);

  /// Hello both ways (runner.startup_timeout); from then on heartbeats flow, and messages can be
  /// sent and read with next() before there is a job.
  boost::asio::awaitable<Result<>> greet(std::string expected_build);
  /// The next message that is no heartbeat; silence meanwhile is an error. Between greet() and
  /// prepare() or start().
  boost::asio::awaitable<Result<wire::Message>> next();
  /// From now on a host whose heartbeats go on, but which for `limit` neither says anything else
  /// nor takes anything, is lost while next() or drained() waits for it (ErrorCode::timeout).
  void expect_progress(std::chrono::milliseconds limit);
  /// Waits until at most `bytes` of what was sent wait to be written, or the session is closed.
  boost::asio::awaitable<void> drained(std::size_t bytes);

  /// Hands the job over and waits until the host is ready to start its ranks
  /// (runner.startup_timeout). From then on heartbeats flow: other hosts may take their time.
  boost::asio::awaitable<Result<wire::JobReady>> prepare(wire::JobSpec job,
                                                         std::string expected_build);

  /// The same for a job that a runner holds: its launcher is gone, or the connection to it was.
  /// Heartbeats flow from then on.
  boost::asio::awaitable<Result<>> adopt(wire::Adopt order, std::string expected_build);
  /// What a runner has said when it refused prepare() or adopt(); none: it did not come to that.
  const std::optional<wire::RunnerError>& refusal() const { return refusal_; }

  /// From now on messages go to `listener` and silence is noticed.
  void start(Listener listener);

  /// Queues a message. Nothing happens when the session is closed.
  void send(const wire::Message& message);
  /// The same for a frame (wire::encode) that several hosts get: they share its bytes.
  void send(std::shared_ptr<const std::string> frame);

  /// Says Goodbye to a runner that has finished. When it has ended the listener's on_lost is called
  /// as ever, and the connection goes back to its transport (Connection::release).
  void say_goodbye();

  /// Drops the connection: the runner sees EOF and ends its ranks. Idempotent.
  void close();
  bool closed() const { return closed_; }
  /// When bytes of the runner came in last; long ago when none ever did.
  std::chrono::steady_clock::time_point last_heard() const;
  /// The runner's binary is on its way to the host.
  bool pushing() const { return pushing_ && !closed_; }

 private:
  struct Outgoing {
    std::shared_ptr<const std::string> frame;
    bool counts = true;  // as progress, once it is written
  };
  void enqueue(Outgoing outgoing);
  boost::asio::awaitable<Result<>> hand_over(wire::Message order, std::string build);
  /// Sends Hello (unless it was greeted) and `order`, and waits for the message that answers it.
  boost::asio::awaitable<Result<wire::Message>> open(wire::Message order, std::string build);
  boost::asio::awaitable<void> read_loop();
  boost::asio::awaitable<void> write_loop();
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
  std::unique_ptr<RunnerClient> client_;  // once its runner has been started
  std::deque<Outgoing> outgoing_;
  std::size_t outgoing_bytes_ = 0;
  boost::asio::steady_timer outgoing_ready_, watch_timer_, drained_;
  std::optional<Listener> listener_;
  std::optional<Error> lost_early_;  // before there was a listener
  std::optional<wire::RunnerError> refusal_;
  HostClock known_clock_;  // before there is a client
  std::uint64_t events_taken_ = 0;
  bool greeted_ = false;                   // its loops run
  bool reading_ = false;                   // somebody waits in next(): silence counts
  bool draining_ = false;                  // somebody waits in drained()
  std::chrono::milliseconds patience_{0};  // of expect_progress(); 0 = none
  std::chrono::steady_clock::time_point last_progress_;
  bool closed_ = false, pushing_ = false;
  bool goodbye_ = false;  // was said
};

}  // namespace sortie::launcher
