// FileCalls: calls functions that may block on the disk on a thread of their own, and awaits their
// results for a limited time.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/asio/give_up.h"
#include "common/asio/token.h"
#include "launcher/run/file_thread.h"

namespace sortie::launcher {

/// All calls are on the I/O thread of `executor`, except drain(). The executor's work must have
/// ended, or its context must still exist, when the object is destroyed.
class FileCalls {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLimit{10000};

  explicit FileCalls(boost::asio::any_io_executor executor, Clock::duration limit = kLimit)
      : executor_(std::move(executor)), limit_(limit) {}

  /// Calls `work` after all earlier calls and returns its result. Returns nullopt if it has not
  /// returned in time, or if `give_up` (may be nullptr) was called: `work` continues and its result
  /// is dropped, so it must own what it uses. It must not throw.
  /// The time counts from the oldest call that has not returned. So a stall is waited for once:
  /// while it lasts, further work is not called at all.
  template <typename Value>
  boost::asio::awaitable<std::optional<Value>> call(std::function<Value()> work,
                                                    std::shared_ptr<GiveUp> give_up) {
    struct Answer {
      explicit Answer(const boost::asio::any_io_executor& executor) : come(executor) {}
      boost::asio::steady_timer come;
      std::optional<Value> value;
    };
    const auto now = Clock::now();
    const auto until = (begun_->empty() ? now : begun_->front()) + limit_;
    if (now >= until || (give_up && give_up->given_up())) co_return std::nullopt;
    const auto answer = std::make_shared<Answer>(executor_);
    answer->come.expires_at(until);
    std::optional<GiveUp::Listener> listener;
    if (give_up) listener.emplace(give_up->listen([answer] { answer->come.cancel(); }));
    begun_->push_back(now);
    thread_.post(
        [executor = executor_, begun = begun_, to = answer, work = std::move(work)]() mutable {
          // The answer is moved, because only the I/O thread may destroy its timer.
          boost::asio::post(executor, [begun, to = std::move(to), value = work()]() mutable {
            begun->pop_front();
            to->value.emplace(std::move(value));
            to->come.cancel();
          });
        });
    co_await answer->come.async_wait(kToken);
    co_return std::move(answer->value);
  }

  /// Blocks until all calls have returned. Returns false after `limit`. The destructor does the
  /// same without a limit.
  bool drain(std::chrono::milliseconds limit) const { return thread_.drain(limit); }

 private:
  const boost::asio::any_io_executor executor_;
  const Clock::duration limit_;
  /// When the calls that have not returned were made, oldest first.
  const std::shared_ptr<std::deque<Clock::time_point>> begun_ =
      std::make_shared<std::deque<Clock::time_point>>();
  FileThread thread_{std::function<void()>()};
};

}  // namespace sortie::launcher
