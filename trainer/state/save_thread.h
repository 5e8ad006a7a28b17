// SaveThread: work that goes on beside training, at low priority.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "trainer/storage/cpu_allowance.h"

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

  /// CPU time of work of low priority, in cores: its threads rest as allowance() says. Without this
  /// call it has no limit.
  void limit_to(double cores) { cores_ = cores; }
  /// For the work: its limit, null without one.
  CpuAllowance* allowance() { return allowance_ ? &*allowance_ : nullptr; }

  /// After done() or wait().
  void start(Priority priority, std::function<void()> work);
  /// Nothing is under way. What the work wrote is then seen.
  bool done() const { return done_; }
  /// Lifts the limit.
  void wait();

 private:
  double cores_ = 0.0;
  std::optional<CpuAllowance> allowance_;  // while work of low priority has one
  std::thread thread_;
  std::atomic<bool> done_{true};
};

}  // namespace sortie::trainer
