// WaitQueue: FIFO queue of waiting coroutines on the I/O thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <memory>

#include "common/asio/token.h"

namespace sortie::launcher::ssh {

class WaitQueue {
 public:
  explicit WaitQueue(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }

  /// Suspends the coroutine until wake_one() wakes it.
  boost::asio::awaitable<void> wait() {
    const auto turn = std::make_shared<boost::asio::steady_timer>(
        executor_, boost::asio::steady_timer::time_point::max());
    waiting_.push_back(turn);
    co_await turn->async_wait(kToken);
  }

  /// Wakes the first coroutine. The queue must not be empty.
  void wake_one() {
    const auto turn = waiting_.front();
    waiting_.pop_front();
    turn->cancel();
  }

 private:
  boost::asio::any_io_executor executor_;
  std::list<std::shared_ptr<boost::asio::steady_timer>> waiting_;
};

}  // namespace sortie::launcher::ssh
