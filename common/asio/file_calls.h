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
#include <mutex>
#include <optional>
#include <utility>

#include "common/asio/file_thread.h"
#include "common/asio/give_up.h"
#include "common/asio/token.h"

namespace sortie {

/// All calls are on the I/O thread of `executor`, except drain(). Before its context is destroyed,
/// the calls must have returned, or abandon() must have been called.
class FileCalls {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLimit{10000};

  explicit FileCalls(boost::asio::any_io_executor executor, Clock::duration limit = kLimit)
      : limit_(limit), answers_(std::make_shared<Answers>(std::move(executor))) {}

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
    const auto answers = answers_;
    const auto now = Clock::now();
    const auto until = (answers->begun.empty() ? now : answers->begun.front()) + limit_;
    if (now >= until || (give_up && give_up->given_up())) co_return std::nullopt;
    const auto answer = std::make_shared<Answer>(answers->executor);
    answer->come.expires_at(until);
    std::optional<GiveUp::Listener> listener;
    if (give_up) listener.emplace(give_up->listen([answer] { answer->come.cancel(); }));
    answers->begun.push_back(now);
    thread_.post([answers, to = std::weak_ptr(answer), work = std::move(work)]() mutable {
      Value value = work();
      const std::lock_guard lock(answers->mutex);
      if (answers->abandoned) return;
      boost::asio::post(answers->executor, [answers, to, value = std::move(value)]() mutable {
        answers->begun.pop_front();
        const auto waiting = to.lock();  // here only, because its timer is the I/O thread's
        if (!waiting) return;
        waiting->value.emplace(std::move(value));
        waiting->come.cancel();
      });
    });
    co_await answer->come.async_wait(kToken);
    co_return std::move(answer->value);
  }

  /// Blocks until all calls have returned. Returns false after `limit`. The destructor does the
  /// same without a limit, unless abandon() was called.
  bool drain(std::chrono::milliseconds limit) const { return thread_.drain(limit); }

  /// Drops the results of calls that have not returned, and no longer uses the executor. Further
  /// calls return nullopt after the limit.
  void abandon() {
    {
      const std::lock_guard lock(answers_->mutex);
      answers_->abandoned = true;
    }
    thread_.abandon();
  }

 private:
  struct Answers {
    explicit Answers(boost::asio::any_io_executor to) : executor(std::move(to)) {}
    const boost::asio::any_io_executor executor;
    std::deque<Clock::time_point> begun;  // calls that have not returned, oldest first
    std::mutex mutex;
    bool abandoned = false;  // under the mutex
  };

  const Clock::duration limit_;
  const std::shared_ptr<Answers> answers_;  // shared with the calls on the thread
  FileThread thread_{std::function<void()>()};
};

}  // namespace sortie
