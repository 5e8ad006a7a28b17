// FileThread: a thread that does file operations in the order in which they were posted. A file
// system that stalls (a dead NFS server, a disk that sleeps) blocks only this thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

namespace sortie {

class FileThread {
 public:
  /// `idle` runs on the thread once a second while the queue is empty. It may be an empty function.
  explicit FileThread(std::function<void()> idle);
  /// Blocks until the queued work is done, unless abandon() was called. If that may take long, call
  /// drain() first.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  /// Queues `work`, which must not throw. `bytes`: memory that it holds. Thread-safe.
  void post(std::function<void()> work, std::size_t bytes = 0);
  /// Sum of `bytes` of the unfinished work.
  std::size_t queued_bytes() const;
  /// Blocks until all posted work is done. Returns false after `limit`.
  bool drain(std::chrono::milliseconds limit) const;
  /// Drops the work that has not begun, and lets the thread end by itself: the destructor does not
  /// wait for a stalled disk. Work that has begun must own what it uses. Idempotent.
  void abandon();

 private:
  struct State;
  static void run(State& state);

  const std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;
};

}  // namespace sortie
