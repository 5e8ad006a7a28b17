#include "trainer/state/save_thread.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/check.h"

namespace sortie::trainer {

/// With this additional niceness a thread that shares a core with a compute thread gets about a
/// twentieth of it.
void lower_thread_priority() {
  constexpr int kNicer = 13;
  constexpr int kIoprioWhoProcess = 1, kBestEffortLowest = (2 << 13) | 7;
  const auto self = static_cast<id_t>(::syscall(SYS_gettid));
  (void)::setpriority(PRIO_PROCESS, self, ::getpriority(PRIO_PROCESS, self) + kNicer);
  (void)::syscall(SYS_ioprio_set, kIoprioWhoProcess, static_cast<int>(self), kBestEffortLowest);
}

void SaveThread::start(Priority priority, std::function<void()> work) {
  SORTIE_CHECK(done_, "a save is under way");
  wait();
  done_ = false;
  allowance_.reset();
  if (priority == Priority::low && cores_ > 0.0) allowance_.emplace(cores_);
  thread_ = std::thread([this, priority, work = std::move(work)] {
    if (priority == Priority::low) lower_thread_priority();
    work();
    done_ = true;
  });
}

void SaveThread::wait() {
  if (allowance_) allowance_->lift();
  if (thread_.joinable()) thread_.join();
}

}  // namespace sortie::trainer
