// The runner's side of sortie-pmix: starts it from the bytes embedded in the runner, held by a
// keeper like a rank, and exchanges frames with it over its stdin and stdout.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/message.h"
#include "runner/process/held_process.h"
#include "runner/streams/link.h"

namespace sortie::runner {

class PmixHelper {
 public:
  explicit PmixHelper(boost::asio::io_context& io)
      : io_(io), process_(io), link_(io), gone_wakeup_(io) {}

  /// Starts it and waits for its answer. The error says why it can not run here (no libpmix ...).
  /// Calls `on_keeper` with the keeper's pid before anything of it can be reaped.
  boost::asio::awaitable<Result<wire::PmixReady>> start(wire::PmixSetup setup, HeldSpec base,
                                                        std::string folder,
                                                        std::function<void(pid_t)> on_keeper);

  /// Passes every further message to `on_message`. Calls `on_lost` if sortie-pmix exits by itself.
  /// Spawn once.
  boost::asio::awaitable<void> relay(std::function<void(wire::Message)> on_message,
                                     std::function<void(std::string why)> on_lost);

  void send(const wire::Message& message) { link_.send(message); }
  /// Sends KILL: it has nothing to save.
  void stop();
  bool running() const { return running_; }
  /// Waits until it and its keeper are gone, at most `limit`.
  boost::asio::awaitable<void> wait_gone(std::chrono::steady_clock::duration limit);

 private:
  Result<> launch(HeldSpec spec, const std::string& folder);
  void on_report(const KeeperReport& report);

  boost::asio::io_context& io_;
  HeldProcess process_;
  Link link_;
  Wakeup gone_wakeup_;
  Fd program_;
  bool running_ = false;
  bool stopping_ = false;
  std::string end_;  // how it ended, for messages
};

}  // namespace sortie::runner
