// Hosts in memory for the launcher's tests: a Transport whose channels exchange the real frames
// with a scripted runner, a coroutine on the same I/O thread. No process, no socket, no fixed
// waits. (Scripts must not use co_await in an `if` condition: g++ 12 lays out the frame of such a
// coroutine incorrectly.)
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/wire/codec.h"
#include "launcher/host/transport.h"

namespace sortie::test {

/// One direction of a channel.
class ByteStream {
 public:
  explicit ByteStream(const boost::asio::any_io_executor& executor);
  void put(std::string_view bytes);
  void end();                   // EOF after the bytes so far
  void fail(std::string what);  // ErrorCode::lost after the bytes so far
  boost::asio::awaitable<Result<std::size_t>> read(std::span<char> buffer);

 private:
  std::string bytes_;
  bool ended_ = false;
  std::optional<Error> error_;
  boost::asio::steady_timer ready_;
};

/// The port that rank 0's host reports if it was asked for any free one.
inline constexpr std::uint32_t kLeasedPort = 23456;

/// The runner's side of a channel, as used by scripts.
class FakeRunner {
 public:
  using Clock = std::chrono::steady_clock;
  FakeRunner(boost::asio::any_io_executor executor, std::string host);

  const std::string& host() const { return host_; }
  void send(const wire::Message& message) { send_bytes(wire::encode(message)); }
  void send_bytes(std::string_view bytes) { to_launcher.put(bytes); }
  /// The process exits: EOF.
  void end();
  /// The connection breaks.
  void cut(std::string why);
  /// Stops heartbeats without closing the connection.
  void freeze() { beating_ = false; }

  /// The next message, also appended to `received`; nullopt if the launcher has closed the channel.
  boost::asio::awaitable<std::optional<wire::Message>> next();
  /// Reads until a message of type T. Returns false if the launcher closes the channel first.
  template <class T>
  boost::asio::awaitable<bool> until() {
    for (;;) {
      const std::optional<wire::Message> message = co_await next();
      if (!message) co_return false;
      if (std::holds_alternative<T>(*message)) co_return true;
    }
  }
  /// Receives Hello and JobSpec, answers Hello, starts heartbeats and, after `delay`, sends
  /// JobReady.
  boost::asio::awaitable<bool> prepare(std::chrono::milliseconds delay = {});
  /// prepare(), then RankStarted for each rank: a job with JobSpec::autostart.
  boost::asio::awaitable<bool> autostart();
  /// prepare(), waits for Start, then RankStarted for each rank.
  boost::asio::awaitable<bool> start();
  /// Receives Hello and Adopt, answers Hello and Adopted, and starts heartbeats. This runner takes
  /// over the state of the host's first one: its job, and which ranks have ended.
  boost::asio::awaitable<bool> adopted();
  /// Receives Hello and HoldMemory, answers both, and starts heartbeats.
  boost::asio::awaitable<bool> hold_memory();
  boost::asio::awaitable<void> sleep(std::chrono::milliseconds time);
  /// Sends RankExited for every rank that has not ended yet, then Finished. Waits for Goodbye, then
  /// ends the stream.
  boost::asio::awaitable<void> finish(bool stopped, int signal = 0);
  /// Sends RankExited for one rank.
  void end_rank(const wire::RankExited& exited);
  void exit_rank(std::uint32_t rank, std::uint32_t code, bool signaled = false,
                 bool stopped = false);

  template <class T>
  std::vector<T> all() const {
    std::vector<T> out;
    for (const auto& [time, message] : received)
      if (const T* wanted = std::get_if<T>(&message)) out.push_back(*wanted);
    return out;
  }
  /// When the first T was received.
  template <class T>
  std::optional<Clock::time_point> time_of() const {
    for (const auto& [time, message] : received)
      if (std::holds_alternative<T>(message)) return time;
    return std::nullopt;
  }

  wire::JobSpec job;
  wire::JobReady ready;         // sent by prepare(), which fills in hostname and port
  wire::Environment start_env;  // of the Start message
  std::vector<std::pair<Clock::time_point, wire::Message>> received;
  bool closed_by_launcher = false;
  bool reads_no_more = false;  // writes to it fail, as those to a process that has ended
  std::uint32_t protocol_version = wire::kProtocolVersion;
  ByteStream to_runner, to_launcher;

 private:
  boost::asio::awaitable<void> beat(std::shared_ptr<FakeRunner> self);
  void answer_hello();
  friend class FakeTransport;

  boost::asio::any_io_executor executor_;
  std::string host_;
  wire::FrameDecoder decoder_;
  std::vector<bool> rank_ended_;
  bool beating_ = false;
  std::weak_ptr<FakeRunner> self_;
};

/// Behaviour of a host. Scripts are named coroutines; their captures must outlive the run.
struct FakeHost {
  using Script = std::function<boost::asio::awaitable<void>(FakeRunner&)>;
  std::optional<Error> connect_error;
  std::chrono::milliseconds connect_delay{0};
  std::string address = "192.0.2.1";
  wire::JobReady ready;
  Script script;
  Script after_loss;  // of the runner that is started after a loss; empty: not reachable again
  std::chrono::milliseconds reconnect_delay{0};  // used then instead of connect_delay
};

class FakeTransport : public launcher::Transport {
 public:
  explicit FakeTransport(boost::asio::any_io_executor executor);
  ~FakeTransport() override;
  FakeHost& host(const std::string& name) { return hosts_[name]; }
  FakeRunner& runner(const std::string& name) { return *runners_.at(name); }
  /// The runner that was started after the host was lost.
  FakeRunner& sweeper(const std::string& name) { return *sweepers_.at(name); }
  bool has_runner(const std::string& name) const { return runners_.contains(name); }
  int connecting = 0, most_connecting = 0;
  int connected = 0;  // connections made
  /// Makes existing connections refuse further commands.
  void break_connections() { ++broken_; }

  boost::asio::awaitable<Result<std::unique_ptr<launcher::Connection>>> connect(
      std::string host) override;
  int broken() const { return broken_; }
  /// Called by connections. Starts the host's script.
  std::unique_ptr<launcher::Channel> open_channel(const std::string& host);

 private:
  boost::asio::any_io_executor executor_;
  int broken_ = 0;
  std::map<std::string, FakeHost> hosts_;
  std::map<std::string, std::shared_ptr<FakeRunner>> runners_, sweepers_;
};

}  // namespace sortie::test
