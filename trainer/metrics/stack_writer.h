// The stacks of all threads of this process, as far as it can tell them itself: addresses with the
// names of functions as the linker has them (c++filt shows those of C++). No debugger, and nothing
// that a thread which hangs could hold: each thread is interrupted by SIGQUIT and notes its own
// return addresses.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <string>

namespace sortie::trainer {

/// From the handler of SIGQUIT to the thread that writes stacks.
class StackRequest {
 public:
  StackRequest() { ::sem_init(&semaphore_, 0, 0); }
  /// True when stacks were asked for; after `limit`, or wake(), false.
  bool wait(std::chrono::milliseconds limit);
  void wake() { ::sem_post(&semaphore_); }
  /// Of a signal handler.
  void ask() {
    asked_ = true;
    ::sem_post(&semaphore_);
  }

 private:
  sem_t semaphore_;
  std::atomic<bool> asked_{false};
};
StackRequest& stack_request();

/// SIGQUIT asks for stacks as long as this lives; one at a time in a process.
class StackSignal {
 public:
  StackSignal();
  ~StackSignal();
  StackSignal(const StackSignal&) = delete;
  StackSignal& operator=(const StackSignal&) = delete;

 private:
  struct sigaction before_ {};
};

/// Appends the stacks of all other threads to the file, which is made where it is missing, and the
/// line training::kStacksEnd. A thread that does not answer within 200 ms is named with that.
/// Bounded: 256 threads, 64 frames of each. A file that can not be written is left.
void write_stacks(const std::string& path);

}  // namespace sortie::trainer
