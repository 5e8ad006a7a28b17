// The holder of a tunnel as the runner sees it: started, asked line by line, and left alone by
// closing its stdin, which it takes for the end.
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

  /// Told when it ends by itself after it has been started, once.
  std::function<void(Error)> on_lost;

  /// Starts it for a device of that name; what it says of itself. `on_child` is told its pid before
  /// it can be reaped. Error: there can be no tunnel here.
  boost::asio::awaitable<Result<nlohmann::json>> start(std::string name,
                                                       std::function<void(pid_t)> on_child);
  boost::asio::awaitable<Result<nlohmann::json>> ask(nlohmann::json order);
  /// It has ended by itself after it had made a device, which it may not have removed.
  bool was_lost() const { return started_ && gone_ && !ending_; }
  /// Ends it and waits for that. False: it is still there after a few seconds.
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
