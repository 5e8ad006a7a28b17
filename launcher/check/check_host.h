// CheckHost: the conversation with the runner of one host during a check. Each step ends by its own
// deadline, whatever the host does. A step on a host that is lost returns at once.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/asio/give_up.h"
#include "launcher/check/evaluate.h"
#include "launcher/host/bootstrap.h"
#include "launcher/host/runner_client.h"
#include "launcher/host/transport.h"

namespace sortie::launcher::check {

class CheckHost : public std::enable_shared_from_this<CheckHost> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// `give_up` (may be nullptr) ends a step under way at once, with ErrorCode::interrupted.
  CheckHost(boost::asio::any_io_executor executor, std::string host, std::vector<int> slots,
            std::shared_ptr<GiveUp> give_up = nullptr);

  /// Connects, starts the runner and compares clocks. A connection that is established only after
  /// this has returned is closed immediately. Both references are unused after the return.
  boost::asio::awaitable<void> connect(Transport& transport, const RunnerBinary& binary,
                                       Milliseconds limit);
  /// Sends a request (JSON, runner/check/README.md) and adds the reports to `result` until the
  /// answer is complete.
  boost::asio::awaitable<void> ask(std::string kind, std::string request, Milliseconds limit);
  /// Sends a tunnel order and returns its report. An error is not stored in `result`, because the
  /// other checks of the host remain valid.
  boost::asio::awaitable<Result<std::string>> order_tunnel(std::string order, Milliseconds limit);
  /// Closes the stream, which ends the runner, and the connection. Idempotent.
  void close();

  bool usable() const { return result.reached && !result.error && !closed_; }

  HostResult result;

 private:
  using Work = boost::asio::awaitable<Result<>>;
  boost::asio::awaitable<void> bounded(Work work, Milliseconds limit);
  Work connect_now(Transport& transport, const RunnerBinary& binary);
  Work compare_clocks();
  Work exchange(std::string kind, std::string request);
  Work exchange_tunnel(std::string order, std::shared_ptr<std::string> report);

  boost::asio::any_io_executor executor_;
  std::shared_ptr<GiveUp> give_up_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<RunnerClient> client_;  // set once the runner has been started
  bool closed_ = false;
};

}  // namespace sortie::launcher::check
