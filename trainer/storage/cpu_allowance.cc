#include "trainer/storage/cpu_allowance.h"

#include <algorithm>
#include <ctime>

namespace sortie::trainer {
namespace {

using std::chrono::nanoseconds;

nanoseconds thread_cpu_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

}  // namespace

CpuAllowance::Spender::Spender(CpuAllowance* allowance) : allowance_(allowance) {
  if (allowance_) counted_ = thread_cpu_time();
}

void CpuAllowance::Spender::rest() {
  if (!allowance_) return;
  const nanoseconds now = thread_cpu_time();
  const nanoseconds taken = now - counted_;
  counted_ = now;
  std::unique_lock lock(allowance_->mutex_);
  // CPU time that was not used, because the disk was slow, is not saved up.
  Clock::time_point& paid_until = allowance_->paid_until_;
  paid_until = std::max(paid_until, Clock::now() - taken) +
               std::chrono::duration_cast<nanoseconds>(taken / allowance_->cores_);
  allowance_->lifting_.wait_until(lock, paid_until, [this] { return allowance_->lifted_; });
}

void CpuAllowance::lift() {
  const std::lock_guard lock(mutex_);
  lifted_ = true;
  lifting_.notify_all();
}

}  // namespace sortie::trainer
