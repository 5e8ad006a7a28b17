// Alarm: calls a function after some time.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <utility>

namespace sortie {

/// The function is never called after the alarm was cancelled, set again or destroyed. The handler
/// of a timer is: if the timer has expired and its handler waits for its turn, neither cancel() nor
/// the timer's destructor can stop it, and it finds its owner destroyed.
class Alarm {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Alarm(const boost::asio::any_io_executor& executor) : timer_(executor) {}

  /// Calls `ring` at `time`. It may destroy the alarm.
  template <class Ring>
  void set_at(Clock::time_point time, Ring ring) {
    set_ = std::make_shared<Clock::time_point>(time);
    timer_.expires_at(time);
    timer_.async_wait([still_set = std::weak_ptr(set_),
                       ring = std::move(ring)](const boost::system::error_code& cancelled) mutable {
      if (!cancelled && !still_set.expired()) ring();
    });
  }
  template <class Ring>
  void set(Clock::duration delay, Ring ring) {
    set_at(Clock::now() + delay, std::move(ring));
  }
  void cancel() {
    set_.reset();
    timer_.cancel();
  }
  /// The time for which it was set last.
  Clock::time_point time() const { return timer_.expiry(); }

 private:
  boost::asio::steady_timer timer_;
  std::shared_ptr<Clock::time_point> set_;  // exists as long as the function may be called
};

}  // namespace sortie
