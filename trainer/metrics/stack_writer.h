// Writes the stacks of all threads of this process, as seen from within: return addresses with
// symbol names as the linker knows them (c++filt demangles those of C++). Needs no debugger, and no
// lock that a hanging thread could hold: SIGQUIT interrupts each thread, which records its own
// return addresses.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <string>

namespace sortie::trainer {

/// A request from the handler of SIGQUIT to the thread that writes stacks.
class StackRequest {
 public:
  StackRequest() { ::sem_init(&semaphore_, 0, 0); }
  /// Blocks until stacks are requested, and returns true. Returns false after `limit` or wake().
  bool wait(std::chrono::milliseconds limit);
  void wake() { ::sem_post(&semaphore_); }
  /// Requests stacks. Called by a signal handler.
  void ask() {
    asked_ = true;
    ::sem_post(&semaphore_);
  }

 private:
  sem_t semaphore_;
  std::atomic<bool> asked_{false};
};
StackRequest& stack_request();

/// While this object exists, SIGQUIT requests stacks. At most one exists per process.
class StackSignal {
 public:
  StackSignal();
  ~StackSignal();
  StackSignal(const StackSignal&) = delete;
  StackSignal& operator=(const StackSignal&) = delete;

 private:
  struct sigaction before_ {};
};

/// Appends the stacks of all other threads and the line training::kStacksEnd to the file, which is
/// created if it does not exist. A thread that does not answer within 200 ms is listed as such.
/// Writes at most 256 threads and 64 frames of each. No-op if the file can not be opened.
void write_stacks(const std::string& path);

}  // namespace sortie::trainer
