// The runner's side of a tunnel's holder: starts it, sends it requests line by line, and ends it by
// closing its stdin.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/result.h"
#include "runner/process/process_defaults.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::tunnel {

class HolderProcess : public std::enable_shared_from_this<HolderProcess> {
 public:
  HolderProcess(boost::asio::io_context& io, const ProcessDefaults& defaults);

  /// Called once if the holder exits by itself, or loses its tunnel, after a successful start().
  std::function<void(Error)> on_lost;

  /// Starts the holder for the device `name` and returns its first message. Calls `on_child` with
  /// its pid before it can be reaped. Error: no tunnel is possible here.
  boost::asio::awaitable<Result<nlohmann::json>> start(std::string name,
                                                       std::function<void(pid_t)> on_child);
  boost::asio::awaitable<Result<nlohmann::json>> ask(nlohmann::json order);
  /// The holder exited by itself after it had created a device, which may still exist.
  bool was_lost() const { return started_ && gone_ && !ending_; }
  /// Ends the holder and waits for its exit. Returns false if it still runs after a few seconds.
  boost::asio::awaitable<bool> end();

 private:
  Result<> launch(const std::string& name, const std::function<void(pid_t)>& on_child);
  boost::asio::awaitable<void> listen();
  boost::asio::awaitable<Result<nlohmann::json>> next_answer(std::chrono::milliseconds limit);

  boost::asio::io_context& io_;
  const ProcessDefaults& defaults_;
  boost::asio::local::stream_protocol::socket socket_;
  std::deque<nlohmann::json> answers_;
  Wakeup answered_;
  bool started_ = false, ending_ = false, gone_ = false, by_sudo_ = false;
};

}  // namespace sortie::runner::tunnel
