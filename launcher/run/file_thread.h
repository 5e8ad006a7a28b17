// FileThread: a thread for work on files, done in the order in which it was asked for. A file
// system that stalls (a dead NFS server, a disk that sleeps) holds up this thread and nothing else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace sortie::launcher {

class FileThread {
 public:
  /// `idle` runs on the thread once a second while there is no other work; may be empty.
  explicit FileThread(std::function<void()> idle);
  /// Does what is queued first: wait for drain() before, where that may take long.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  /// Queues `work`, which must not throw. `bytes`: what it keeps in memory.
  void post(std::function<void()> work, std::size_t bytes = 0);
  /// Of work that is not done.
  std::size_t queued_bytes() const;
  /// Waits until all that was posted is done. False after `limit`.
  bool drain(std::chrono::milliseconds limit) const;

 private:
  struct Work {
    std::function<void()> run;
    std::size_t bytes = 0;
  };
  void run();

  const std::function<void()> idle_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Work> queue_;
  std::size_t queued_bytes_ = 0;
  bool working_ = false, ending_ = false;
  std::thread thread_;
};

}  // namespace sortie::launcher
