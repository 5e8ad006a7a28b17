#include "launcher/run/file_thread.h"

#include <csignal>
#include <utility>

namespace sortie::launcher {
namespace {
constexpr std::chrono::seconds kIdlePeriod{1};
}

FileThread::FileThread(std::function<void()> idle)
    : idle_(std::move(idle)), thread_([this] { run(); }) {}

FileThread::~FileThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FileThread::post(std::function<void()> work, std::size_t bytes) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = queue_.empty();
    queue_.push_back({std::move(work), bytes});
    queued_bytes_ += bytes;
  }
  if (was_empty) changed_.notify_all();
}

std::size_t FileThread::queued_bytes() const {
  const std::lock_guard lock(mutex_);
  return queued_bytes_;
}

bool FileThread::drain(std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return queue_.empty() && !working_; });
}

void FileThread::run() {
  sigset_t all;  // the I/O thread handles signals
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool woken =
        changed_.wait_for(lock, kIdlePeriod, [this] { return ending_ || !queue_.empty(); });
    if (!woken && idle_) {
      working_ = true;
      lock.unlock();
      idle_();
      lock.lock();
      working_ = false;
      changed_.notify_all();
      continue;
    }
    if (queue_.empty() && ending_) return;
    working_ = true;
    while (!queue_.empty()) {
      Work work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work.run();
      work.run = nullptr;
      lock.lock();
      queued_bytes_ -= work.bytes;
    }
    working_ = false;
    changed_.notify_all();
  }
}

}  // namespace sortie::launcher
