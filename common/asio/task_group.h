// TaskGroup: runs coroutines concurrently and waits for all of them. Not thread-safe: all of them
// run on one I/O thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <memory>

namespace sortie {

class TaskGroup {
 public:
  explicit TaskGroup(boost::asio::any_io_executor executor);
  /// Tasks that have not ended continue. Their later exceptions are treated as in spawn.h.
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  /// Starts `task`. Tasks of the group may start others.
  void spawn(boost::asio::awaitable<void> task);
  /// Number of tasks that have not ended.
  std::size_t running() const;

  /// Returns when all tasks have ended, or after stop_waiting(). When a task fails, rethrows the
  /// first exception at once. At most one waiter at a time; the group must outlive the wait.
  boost::asio::awaitable<void> wait();
  /// Makes wait() return at once from now on. Later exceptions of tasks are treated as in spawn.h.
  void stop_waiting();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sortie
