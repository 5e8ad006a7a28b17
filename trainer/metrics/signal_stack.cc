#include "trainer/metrics/signal_stack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <new>

namespace sortie::trainer {
namespace {

/// The most stack that our handlers need; backtrace() needs most of it. The kernel's frame is
/// added, which has 11 KiB on a CPU with AMX.
constexpr std::size_t kForHandlers = std::size_t{64} << 10;

std::size_t stack_bytes() {
  const long frame = ::sysconf(_SC_MINSIGSTKSZ);
  return kForHandlers + static_cast<std::size_t>(frame > 0 ? frame : MINSIGSTKSZ);
}

/// The alternate stack of the calling thread. If there is no memory for it, handlers run on the
/// thread's own stack.
class SignalStack {
 public:
  SignalStack() {
    stack_t other{};
    // Threads of a sanitizer already have one, which they remove themselves.
    if (::sigaltstack(nullptr, &other) != 0 || (other.ss_flags & SS_DISABLE) == 0) return;
    const std::size_t bytes = stack_bytes();
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    stack_.ss_sp = memory;
    stack_.ss_size = bytes;
    ::sigaltstack(&stack_, nullptr);
  }
  ~SignalStack() {
    if (stack_.ss_sp == nullptr) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
    ::munmap(stack_.ss_sp, stack_.ss_size);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  stack_t stack_{};
};

void have_signal_stack() {
  static thread_local const SignalStack stack;
}

struct Start {
  void* (*body)(void*);
  void* argument;
};

void* with_signal_stack(void* argument) {
  const Start start = *std::unique_ptr<Start>(static_cast<Start*>(argument));
  have_signal_stack();
  return start.body(start.argument);
}

void take(int number, struct sigaction& action, int flags, struct sigaction& before) {
  have_signal_stack();
  action.sa_flags = SA_RESTART | SA_ONSTACK | flags;
  ::sigaction(number, &action, &before);
}

}  // namespace

void handle_signal(int number, void (*handler)(int), int flags, struct sigaction& before) {
  struct sigaction action {};
  action.sa_handler = handler;
  take(number, action, flags, before);
}

void handle_signal(int number, void (*handler)(int, siginfo_t*, void*), int flags,
                   struct sigaction& before) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  take(number, action, flags | SA_SIGINFO, before);
}

}  // namespace sortie::trainer

/// Calls the pthread_create() of the C library (or of a sanitizer). The new thread first gets a
/// stack for signal handlers. Returns EAGAIN if there is no memory.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
    void* argument) noexcept {
  using sortie::trainer::Start;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  std::unique_ptr<Start> start(new (std::nothrow) Start{body, argument});
  if (!start) return EAGAIN;
  const int failed = create(thread, attributes, sortie::trainer::with_signal_stack, start.get());
  if (failed == 0) (void)start.release();
  return failed;
}
