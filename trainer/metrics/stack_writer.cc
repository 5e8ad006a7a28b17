#include "trainer/metrics/stack_writer.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "common/base/fd.h"
#include "common/training/progress.h"
#include "trainer/metrics/signal_stack.h"

namespace sortie::trainer {
namespace {

using std::chrono::milliseconds;
constexpr int kFrames = 64;
constexpr std::size_t kMaxThreads = 256;
constexpr milliseconds kAnswerLimit{200};

/// Filled by the handler of an interrupted thread, one thread at a time.
struct Collected {
  std::atomic<pid_t> wanted{0};  // thread that has to answer; 0 = none
  std::atomic<int> count{-1};    // number of its frames; -1 = no answer yet
  std::array<void*, kFrames> frames{};
};
Collected collected;

pid_t thread_id() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

void on_quit(int, siginfo_t* info, void*) {
  const int error = errno;
  if (info->si_code != SI_TKILL || info->si_pid != ::getpid()) {
    stack_request().ask();
  } else if (pid_t self = thread_id(); collected.wanted.compare_exchange_strong(self, 0)) {
    collected.count = ::backtrace(collected.frames.data(), kFrames);
  }
  errno = error;
}

std::vector<pid_t> other_threads() {
  std::vector<pid_t> found;
  DIR* folder = ::opendir("/proc/self/task");
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder)) {
    const int id = std::atoi(entry->d_name);
    if (id > 0 && id != thread_id() && found.size() < kMaxThreads) found.push_back(id);
  }
  ::closedir(folder);
  return found;
}

std::string name_of(pid_t thread) {
  char path[64], name[64] = "";
  std::snprintf(path, sizeof path, "/proc/self/task/%d/comm", thread);
  const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t count = file ? ::read(file.get(), name, sizeof name - 1) : 0;
  std::string text(name, static_cast<std::size_t>(count > 0 ? count : 0));
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Returns the number of frames; -1 if the thread did not answer.
int ask_thread(pid_t thread) {
  collected.count = -1;
  collected.wanted = thread;
  if (::syscall(SYS_tgkill, ::getpid(), thread, SIGQUIT) != 0) {
    collected.wanted = 0;
    return -1;
  }
  const auto deadline = std::chrono::steady_clock::now() + kAnswerLimit;
  constexpr timespec kPause{0, 1'000'000};
  while (collected.count < 0 && std::chrono::steady_clock::now() < deadline)
    ::nanosleep(&kPause, nullptr);
  pid_t expected = thread;
  // The thread began to answer at this moment, so it gets a little more time.
  if (!collected.wanted.compare_exchange_strong(expected, 0))
    for (int i = 0; i < 100 && collected.count < 0; ++i) ::nanosleep(&kPause, nullptr);
  return collected.count;
}

}  // namespace

StackRequest& stack_request() {
  static StackRequest request;
  return request;
}

bool StackRequest::wait(milliseconds limit) {
  timespec until{};  // on a clock that is never set: a rank that is silent for long counts as hung
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += limit.count() % 1000 * 1'000'000;
  until.tv_sec += limit.count() / 1000 + until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  while (::sem_clockwait(&semaphore_, CLOCK_MONOTONIC, &until) != 0)
    if (errno != EINTR) break;
  return asked_.exchange(false);
}

StackSignal::StackSignal() {
  stack_request();
  // The first call loads the unwinder, which is not allowed in a signal handler.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  handle_signal(SIGQUIT, on_quit, 0, before_);
}

StackSignal::~StackSignal() {
  ::sigaction(SIGQUIT, &before_, nullptr);
}

void write_stacks(const std::string& path) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return;
  for (const pid_t thread : other_threads()) {
    const int count = ask_thread(thread);
    ::dprintf(file.get(), "thread %d (%s):%s\n", thread, name_of(thread).c_str(),
              count < 0 ? " does not answer" : "");
    // The first two frames are the handler and the kernel's signal frame.
    constexpr int kOwnFrames = 2;
    if (count > kOwnFrames)
      ::backtrace_symbols_fd(collected.frames.data() + kOwnFrames, count - kOwnFrames, file.get());
  }
  ::dprintf(file.get(), "%s\n", std::string(training::kStacksEnd).c_str());
}

}  // namespace sortie::trainer
