// Hosts in memory for the launcher's tests: a Transport whose channels speak the real frames with a
// scripted runner, a coroutine on the same I/O thread. No process, no socket, no fixed waits.
// (In scripts, co_await stands in no `if` condition: g++ 12 lays such a coroutine's frame out
// wrong.)
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
  void end();                   // EOF after what is there
  void fail(std::string what);  // ErrorCode::lost after what is there
  boost::asio::awaitable<Result<std::size_t>> read(std::span<char> buffer);

 private:
  std::string bytes_;
  bool ended_ = false;
  std::optional<Error> error_;
  boost::asio::steady_timer ready_;
};

/// The port that rank 0's host says it holds when it was asked for any.
inline constexpr std::uint32_t kLeasedPort = 23456;

/// The runner's side of a channel, as scripts see it.
class FakeRunner {
 public:
  using Clock = std::chrono::steady_clock;
  FakeRunner(boost::asio::any_io_executor executor, std::string host);

  const std::string& host() const { return host_; }
  void send(const wire::Message& message) { send_bytes(wire::encode(message)); }
  void send_bytes(std::string_view bytes) { to_launcher.put(bytes); }
  /// The process is gone: EOF.
  void end();
  /// The connection breaks.
  void cut(std::string why);
  /// Dead air: no more heartbeats, nothing is read.
  void freeze() { beating_ = false; }

  /// The next message, kept in `received`; nothing when the launcher has closed.
  boost::asio::awaitable<std::optional<wire::Message>> next();
  /// Reads until a message of this type; false when the launcher closed before.
  template <class T>
  boost::asio::awaitable<bool> until() {
    for (;;) {
      const std::optional<wire::Message> message = co_await next();
      if (!message) co_return false;
      if (std::holds_alternative<T>(*message)) co_return true;
    }
  }
  /// Takes Hello and JobSpec, beats, answers Hello and, after `delay`, JobReady.
  boost::asio::awaitable<bool> prepare(std::chrono::milliseconds delay = {});
  /// prepare, RankStarted of each rank: a job with JobSpec::autostart.
  boost::asio::awaitable<bool> autostart();
  /// prepare, Start, RankStarted of each rank.
  boost::asio::awaitable<bool> start();
  /// Takes Hello and Adopt, beats, answers Hello and Adopted. What the host's first runner had is
  /// had by this one: its job, and which ranks have ended.
  boost::asio::awaitable<bool> adopted();
  /// Takes Hello and HoldMemory, beats, answers both.
  boost::asio::awaitable<bool> hold_memory();
  boost::asio::awaitable<void> sleep(std::chrono::milliseconds time);
  /// RankExited of every rank that has not ended yet, Finished, Goodbye, EOF.
  boost::asio::awaitable<void> finish(bool stopped, int signal = 0);
  /// RankExited of one rank.
  void exit_rank(std::uint32_t rank, std::uint32_t code, bool signaled = false,
                 bool stopped = false);

  template <class T>
  std::vector<T> all() const {
    std::vector<T> out;
    for (const auto& [time, message] : received)
      if (const T* wanted = std::get_if<T>(&message)) out.push_back(*wanted);
    return out;
  }
  /// When the first T came.
  template <class T>
  std::optional<Clock::time_point> time_of() const {
    for (const auto& [time, message] : received)
      if (std::holds_alternative<T>(message)) return time;
    return std::nullopt;
  }

  wire::JobSpec job;
  wire::JobReady ready;         // what prepare answers; hostname and port are filled in
  wire::Environment start_env;  // of Start
  std::vector<std::pair<Clock::time_point, wire::Message>> received;
  bool closed_by_launcher = false;
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

/// What a host does. Scripts are named coroutines; what they capture must outlive the run.
struct FakeHost {
  using Script = std::function<boost::asio::awaitable<void>(FakeRunner&)>;
  std::optional<Error> connect_error;
  std::chrono::milliseconds connect_delay{0};
  std::string address = "192.0.2.1";
  wire::JobReady ready;
  Script script;
  Script after_loss;  // of the runner that comes when the host was lost; none: not reached again
  std::chrono::milliseconds reconnect_delay{0};  // then, instead of connect_delay
};

class FakeTransport : public launcher::Transport {
 public:
  explicit FakeTransport(boost::asio::any_io_executor executor);
  ~FakeTransport() override;
  FakeHost& host(const std::string& name) { return hosts_[name]; }
  FakeRunner& runner(const std::string& name) { return *runners_.at(name); }
  /// The one that came after the host was lost.
  FakeRunner& sweeper(const std::string& name) { return *sweepers_.at(name); }
  bool has_runner(const std::string& name) const { return runners_.contains(name); }
  int connecting = 0, most_connecting = 0;
  int connected = 0;  // connections that were made
  /// Those that there are do not take another command any more.
  void break_connections() { ++broken_; }

  boost::asio::awaitable<Result<std::unique_ptr<launcher::Connection>>> connect(
      std::string host) override;
  int broken() const { return broken_; }
  /// Called by connections: starts the host's script.
  std::unique_ptr<launcher::Channel> open_channel(const std::string& host);

 private:
  boost::asio::any_io_executor executor_;
  int broken_ = 0;
  std::map<std::string, FakeHost> hosts_;
  std::map<std::string, std::shared_ptr<FakeRunner>> runners_, sweepers_;
};

}  // namespace sortie::test
