// SaveThread: runs work in the background of training, optionally at low priority.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "trainer/storage/cpu_allowance.h"

namespace sortie::trainer {

/// Lowers the CPU and I/O priority of the calling thread and of threads that it starts later: they
/// get the CPU time and the disk bandwidth that training leaves, and a little more.
void lower_thread_priority();

/// Runs one piece of work at a time, each on a new thread. Threads that the work starts inherit its
/// priority.
class SaveThread {
 public:
  enum class Priority {
    normal,  // a caller waits for the work
    low,     // it gets the CPU time that the compute threads leave, and a little more
  };

  SaveThread() = default;
  ~SaveThread() { wait(); }
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

  /// Limits the CPU time of low-priority work, in cores; its threads pause as allowance() says.
  /// Without this call there is no limit.
  void limit_to(double cores) { cores_ = cores; }
  /// The limit, for the work itself; null if there is none.
  CpuAllowance* allowance() { return allowance_ ? &*allowance_ : nullptr; }

  /// Starts work. Call only when done().
  void start(Priority priority, std::function<void()> work);
  /// Whether no work is running. If true, everything that the work has written is visible.
  bool done() const { return done_; }
  /// Lifts the limit and waits for the work.
  void wait();

 private:
  double cores_ = 0.0;
  std::optional<CpuAllowance> allowance_;  // set while low-priority work has a limit
  std::thread thread_;
  std::atomic<bool> done_{true};
};

}  // namespace sortie::trainer
