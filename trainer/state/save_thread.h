// SaveThread: work that goes on beside training, at low priority.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace sortie::trainer {

/// Of this thread, and of those that it starts: it takes the CPU and the disk that training leaves,
/// and a little more.
void lower_thread_priority();

/// One piece of work at a time, each on a thread of its own; threads that the work starts inherit
/// its priority.
class SaveThread {
 public:
  enum class Priority {
    normal,  // somebody waits for it
    low,     // it takes the CPU time that the compute threads leave, and a little more
  };

  SaveThread() = default;
  ~SaveThread() { wait(); }
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

  /// After done() or wait().
  void start(Priority priority, std::function<void()> work);
  /// Nothing is under way. What the work wrote is then seen.
  bool done() const { return done_; }
  void wait();

 private:
  std::thread thread_;
  std::atomic<bool> done_{true};
};

}  // namespace sortie::trainer
