// TaskGroup: coroutines that run at the same time, and one that waits for all of them. All on one
// I/O thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <memory>

namespace sortie {

class TaskGroup {
 public:
  explicit TaskGroup(boost::asio::any_io_executor executor);
  /// Tasks that have not ended go on; see spawn.h for what they throw from then on.
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  /// Starts `task`; tasks of the group may start others.
  void spawn(boost::asio::awaitable<void> task);
  /// Tasks that have not ended.
  std::size_t running() const;

  /// Returns when all tasks have ended, or after stop_waiting(). Throws what the first task that
  /// failed has thrown, at once. One waiter at a time; the group must outlive the wait.
  boost::asio::awaitable<void> wait();
  /// From now on wait() returns at once. What tasks throw then is as with spawn().
  void stop_waiting();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sortie
