// A limit on the CPU time of work that goes on beside something more urgent.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sortie::trainer {

/// Shared by all threads of the work, which call Spender::rest() between pieces of some
/// milliseconds. Niceness does not do it: the scheduler gives a nice thread every moment in which a
/// compute thread waits at a barrier, and the thread that it waits for is then held up as well.
class CpuAllowance {
 public:
  /// `cores`: CPU time of all threads together, for each second that passes; more than 0.
  explicit CpuAllowance(double cores) : cores_(cores) {}

  /// One for each thread, which makes and uses it.
  class Spender {
   public:
    /// Null: no limit.
    explicit Spender(CpuAllowance* allowance);
    /// Sleeps until the CPU time that this thread took since its last call is within the limit.
    void rest();

   private:
    CpuAllowance* allowance_;
    std::chrono::nanoseconds counted_{};  // CPU time of this thread
  };

  /// Somebody waits for the work: no limit from now on. Who rests wakes up.
  void lift();

 private:
  using Clock = std::chrono::steady_clock;

  const double cores_;
  std::mutex mutex_;
  std::condition_variable lifting_;
  Clock::time_point paid_until_{};  // with what has been taken
  bool lifted_ = false;
};

}  // namespace sortie::trainer
