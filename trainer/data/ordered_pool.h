// OrderedPool: threads that work on items from one source, whose results come out in its order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

/// `Item` and `Output` are moved around. The source is asked by one thread at a time, in order, and
/// no further ahead of the results than memory should hold.
template <class Item, class Output>
class OrderedPool {
 public:
  using Source = std::function<Result<std::optional<Item>>()>;
  using Work = std::function<Result<Output>(const Item&)>;
  struct Finished {
    Item item;
    Output output;
  };

  OrderedPool(Source source, Work work, int threads)
      : source_(std::move(source)), work_(std::move(work)), most_(4 * threads + 4) {
    threads_.emplace_back([this] { read_items(); });
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work_items(); });
  }
  OrderedPool(const OrderedPool&) = delete;
  OrderedPool& operator=(const OrderedPool&) = delete;
  ~OrderedPool() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    threads_.clear();  // joins
  }

  enum class State { ready, pending, ended };
  /// Whether next() would answer at once; waits for that up to `patience`.
  State wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return state() != State::pending; });
    return state();
  }

  /// The next result, or the first error of source or work. Only when wait() said ready.
  Result<Finished> next() {
    std::unique_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      job = std::move(jobs_.front());
      jobs_.pop_front();
      if (taken_ > 0) --taken_;  // an error of the source may be at the front untaken
    }
    changed_.notify_all();
    if (!job->output->has_value()) return std::unexpected(std::move(*job->output).error());
    return Finished{std::move(*job->item), std::move(**job->output)};
  }

 private:
  struct Job {
    std::optional<Item> item;  // absent: the source failed
    std::optional<Result<Output>> output;
  };

  State state() const {
    if (jobs_.empty()) return read_all_ ? State::ended : State::pending;
    return jobs_.front()->output ? State::ready : State::pending;
  }

  void read_items() {
    for (bool more = true; more;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || jobs_.size() < most_; });
        if (stopped_) return;
      }
      Result<std::optional<Item>> item = source_();
      more = item && *item;
      {
        const std::lock_guard lock(mutex_);
        if (!item) {
          // In its place, after all that came before; nothing is left to do about it.
          auto job = std::make_unique<Job>();
          job->output = std::unexpected(std::move(item).error());
          jobs_.push_back(std::move(job));
        } else if (*item) {
          jobs_.push_back(std::make_unique<Job>());
          jobs_.back()->item = std::move(**item);
        }
        read_all_ = !more;
      }
      changed_.notify_all();
    }
  }

  void work_items() {
    for (;;) {
      Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || taken_ < jobs_.size() || read_all_; });
        if (stopped_ || taken_ == jobs_.size()) return;
        job = jobs_[taken_++].get();
        if (!job->item) continue;
      }
      Result<Output> output = work_(*job->item);
      {
        const std::lock_guard lock(mutex_);
        job->output = std::move(output);
      }
      changed_.notify_all();
    }
  }

  const Source source_;
  const Work work_;
  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> jobs_;  // in order; the first taken_ are with a thread or done
  std::size_t taken_ = 0;
  bool read_all_ = false;
  bool stopped_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sortie::trainer
