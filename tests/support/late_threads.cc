// Preloaded (LD_PRELOAD) into a program, it makes threads that wait for work late: whenever a
// condition variable wakes a thread up, the thread sleeps for up to 100 ms first. On a busy host
// threads are late by as much. Acts only in `sortie` and in the tests of launcher and
// runner, so that hosts and ranks keep their speed.
//
// What one thread has decided and another one writes (the journal, logs, what is printed) is then
// often not written yet when somebody looks.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <string_view>
#include <thread>

namespace {

bool acts() {
  static const bool answer = [] {
    const std::string_view name = program_invocation_short_name;
    return name == "sortie" || name.starts_with("test_launcher") || name.starts_with("test_runner");
  }();
  return answer;
}

/// Gives up the mutex meanwhile, as if the kernel had not run the thread yet.
void be_late(pthread_mutex_t* mutex) {
  constexpr int kMostMicroseconds = 100'000;
  if (!acts()) return;
  thread_local std::minstd_rand random(std::random_device{}());
  const std::chrono::microseconds delay(random() % kMostMicroseconds);
  pthread_mutex_unlock(mutex);
  std::this_thread::sleep_for(delay);
  pthread_mutex_lock(mutex);
}

template <class Function>
Function* real(const char* name, const char* version) {
  return reinterpret_cast<Function*>(dlvsym(RTLD_NEXT, name, version));
}

}  // namespace

// The versions are those of x86-64; the default ones of other architectures differ.
extern "C" int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static const auto next =
      real<int(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait", "GLIBC_2.3.2");
  const int result = next(condition, mutex);
  be_late(mutex);
  return result;
}

extern "C" int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      const timespec* until) {
  static const auto next = real<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>(
      "pthread_cond_timedwait", "GLIBC_2.3.2");
  const int result = next(condition, mutex, until);
  if (result != ETIMEDOUT) be_late(mutex);
  return result;
}

extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      clockid_t clock, const timespec* until) {
  static const auto next = real<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
      "pthread_cond_clockwait", "GLIBC_2.34");
  const int result = next(condition, mutex, clock, until);
  if (result != ETIMEDOUT) be_late(mutex);
  return result;
}
