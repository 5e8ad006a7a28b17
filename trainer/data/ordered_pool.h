// OrderedPool: worker threads process items from one source; results are returned in its order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

/// `Item` and `Output` must be movable. One thread calls the source, in order. At most 4 * threads
/// + 4 items are held at a time, which bounds the memory. next() throws what the source or the work
/// has thrown.
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
    try {
      threads_.emplace_back([this] { read_items(); });
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work_items(); });
    } catch (...) {  // a thread could not be started
      stop();
      throw;
    }
  }
  OrderedPool(const OrderedPool&) = delete;
  OrderedPool& operator=(const OrderedPool&) = delete;
  ~OrderedPool() { stop(); }

  enum class State { ready, pending, ended };
  /// Returns whether next() can return at once; blocks up to `patience` until it can. Returns
  /// `ended` after the last result.
  State wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return state() != State::pending; });
    return state();
  }

  /// Returns the next result, or the error of the source or the work in its place. Call only after
  /// wait() returned `ready`.
  Result<Finished> next() {
    std::unique_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      job = std::move(jobs_.front());
      jobs_.pop_front();
      if (taken_ > 0) --taken_;  // the source's error can be at the front without being taken
    }
    changed_.notify_all();
    if (job->thrown) std::rethrow_exception(job->thrown);
    if (!job->output->has_value()) return std::unexpected(std::move(*job->output).error());
    return Finished{std::move(*job->item), std::move(**job->output)};
  }

 private:
  struct Job {
    std::optional<Item> item;  // nullopt: the source failed
    std::optional<Result<Output>> output;
    std::exception_ptr thrown{};  // instead of the output
    bool done() const { return output || thrown; }
  };

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    threads_.clear();  // joins
  }

  State state() const {
    if (jobs_.empty()) return read_all_ ? State::ended : State::pending;
    return jobs_.front()->done() ? State::ready : State::pending;
  }

  void read_items() {
    auto last = std::make_unique<Job>();  // for what the source throws, perhaps for lack of memory
    try {
      read_all_items();
    } catch (...) {
      last->thrown = std::current_exception();
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(last));
      read_all_ = true;
    }
    changed_.notify_all();
  }

  void read_all_items() {
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
          // Queued after all earlier items. It needs no work.
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
      std::optional<Result<Output>> output;
      std::exception_ptr thrown;
      try {
        output = work_(*job->item);
      } catch (...) {
        thrown = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        job->output = std::move(output);
        job->thrown = thrown;
      }
      changed_.notify_all();
    }
  }

  const Source source_;
  const Work work_;
  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> jobs_;  // in source order; the first taken_ are in work or done
  std::size_t taken_ = 0;
  bool read_all_ = false;
  bool stopped_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sortie::trainer
