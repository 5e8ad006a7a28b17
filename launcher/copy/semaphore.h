// Semaphore: limits how many coroutines of one thread are between acquire() and release().
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>

#include "common/asio/token.h"

namespace sortie::launcher {

class Semaphore {
 public:
  Semaphore(boost::asio::any_io_executor executor, std::size_t seats)
      : seats_(seats), free_(executor, std::chrono::steady_clock::time_point::max()) {}

  boost::asio::awaitable<void> acquire() {
    while (seats_ == 0) co_await free_.async_wait(kToken);
    --seats_;
  }
  void release() {
    ++seats_;
    free_.cancel_one();
  }

 private:
  std::size_t seats_;
  boost::asio::steady_timer free_;  // never expires; setting its time would wake all waiters
};

}  // namespace sortie::launcher
