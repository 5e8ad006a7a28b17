#include "common/asio/file_thread.h"

#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <utility>

namespace sortie {
namespace {

constexpr std::chrono::seconds kIdlePeriod{1};

struct Work {
  std::function<void()> run;
  std::size_t bytes = 0;
};

}  // namespace

struct FileThread::State {
  explicit State(std::function<void()> when_idle) : idle(std::move(when_idle)) {}

  const std::function<void()> idle;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  std::size_t queued_bytes = 0;
  bool working = false, ending = false;
};

FileThread::FileThread(std::function<void()> idle)
    : state_(std::make_shared<State>(std::move(idle))),
      thread_([state = state_] { run(*state); }) {}

FileThread::~FileThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
  }
  state_->changed.notify_all();
  thread_.join();
}

void FileThread::abandon() {
  if (!thread_.joinable()) return;
  std::deque<Work> dropped;  // destroyed without the lock
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
    std::swap(dropped, state_->queue);
  }
  state_->changed.notify_all();
  thread_.detach();
}

void FileThread::post(std::function<void()> work, std::size_t bytes) {
  bool was_empty = false;
  {
    const std::lock_guard lock(state_->mutex);
    was_empty = state_->queue.empty();
    state_->queue.push_back({std::move(work), bytes});
    state_->queued_bytes += bytes;
  }
  if (was_empty) state_->changed.notify_all();
}

std::size_t FileThread::queued_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queued_bytes;
}

bool FileThread::drain(std::chrono::milliseconds limit) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, limit,
                                  [this] { return state_->queue.empty() && !state_->working; });
}

void FileThread::run(State& state) {
  sigset_t all;  // the I/O thread handles signals
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(state.mutex);
  for (;;) {
    const bool woken = state.changed.wait_for(
        lock, kIdlePeriod, [&state] { return state.ending || !state.queue.empty(); });
    if (!woken && state.idle) {
      state.working = true;
      lock.unlock();
      state.idle();
      lock.lock();
      state.working = false;
      state.changed.notify_all();
      continue;
    }
    if (state.queue.empty() && state.ending) return;
    state.working = true;
    while (!state.queue.empty()) {
      Work work = std::move(state.queue.front());
      state.queue.pop_front();
      lock.unlock();
      work.run();
      work.run = nullptr;
      lock.lock();
      state.queued_bytes -= work.bytes;
    }
    state.working = false;
    state.changed.notify_all();
  }
}

}  // namespace sortie
