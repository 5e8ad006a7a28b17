// Wakeup: suspends one coroutine until another part of the same thread has work for it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "common/asio/token.h"

namespace sortie::runner {

class Wakeup {
 public:
  explicit Wakeup(boost::asio::io_context& io) : timer_(io) {}

  /// Wakes the waiter; if there is none, makes the next wait() return at once.
  void notify() {
    pending_ = true;
    timer_.cancel();
  }

  /// Returns true when notified, false after `limit`. At most one waiter at a time.
  boost::asio::awaitable<bool> wait(
      std::chrono::steady_clock::duration limit = std::chrono::hours(24 * 365)) {
    if (!pending_) {
      timer_.expires_after(limit);
      co_await timer_.async_wait(kToken);
    }
    co_return std::exchange(pending_, false);
  }

 private:
  boost::asio::steady_timer timer_;
  bool pending_ = false;
};

}  // namespace sortie::runner
