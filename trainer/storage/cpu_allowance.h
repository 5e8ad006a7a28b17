// A limit on the CPU time of background work.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sortie::trainer {

/// Shared by all threads of the work, which call Spender::rest() between pieces of some
/// milliseconds. Niceness is not sufficient: the scheduler runs a nice thread whenever a compute
/// thread waits at a barrier, and so delays the thread that the barrier waits for as well.
class CpuAllowance {
 public:
  /// `cores`: CPU seconds of all threads together per second that passes; more than 0.
  explicit CpuAllowance(double cores) : cores_(cores) {}

  /// One per thread, created and used by that thread.
  class Spender {
   public:
    /// nullptr: no limit.
    explicit Spender(CpuAllowance* allowance);
    /// Sleeps until the CPU time that this thread has used since its last call is within the limit.
    void rest();

   private:
    CpuAllowance* allowance_;
    std::chrono::nanoseconds counted_{};  // CPU time of this thread
  };

  /// Removes the limit, because something waits for the work. Wakes the threads in rest().
  void lift();

 private:
  using Clock = std::chrono::steady_clock;

  const double cores_;
  std::mutex mutex_;
  std::condition_variable lifting_;
  Clock::time_point paid_until_{};  // when the CPU time used so far is within the limit
  bool lifted_ = false;
};

}  // namespace sortie::trainer
