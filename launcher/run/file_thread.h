// FileThread: a thread that does file operations in the order in which they were posted. A file
// system that stalls (a dead NFS server, a disk that sleeps) blocks only this thread.
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
  /// `idle` runs on the thread once a second while the queue is empty. It may be an empty function.
  explicit FileThread(std::function<void()> idle);
  /// Blocks until the queued work is done. If that may take long, call drain() first.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  /// Queues `work`, which must not throw. `bytes`: memory that it holds. Thread-safe.
  void post(std::function<void()> work, std::size_t bytes = 0);
  /// Sum of `bytes` of the unfinished work.
  std::size_t queued_bytes() const;
  /// Blocks until all posted work is done. Returns false after `limit`.
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
