#include "trainer/loop/signals.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <mutex>

#include "common/base/check.h"
#include "common/training/progress.h"
#include "trainer/metrics/signal_stack.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {
namespace {

// Signal handlers use these: lock-free atomics and the timer's id.
std::atomic<bool> stop{false}, save{false}, given_up{false}, stopping{false};
// Time from giving up waits until a save must begin: a busy machine may suspend a process for a
// second or two. kToEndMs is for the time before the first step, when there is nothing to save.
constexpr long kToBeginMs = 3000, kToEndMs = 500;
// Time from SIGTERM until waits are given up, with all peers alive and with one lost; from there to
// the end; and the limit for any of these.
std::atomic<long> together_ms{0}, patience_ms{0}, to_end_ms{kToEndMs}, longest_ms{0};
std::string hurry_file;
timer_t timer;
std::mutex users_mutex;
int users = 0;  // existing objects
struct sigaction old_term, old_usr1, old_alarm;

void arm(long milliseconds) {
  itimerspec value{};
  value.it_value.tv_sec = milliseconds / 1000;
  value.it_value.tv_nsec = milliseconds % 1000 * 1'000'000;
  ::timer_settime(timer, 0, &value, nullptr);
}

void on_term(int) {
  const int error = errno;
  const bool hurried = !hurry_file.empty() && ::access(hurry_file.c_str(), F_OK) == 0;
  arm(hurried ? patience_ms : together_ms);  // timer first: it must be set when the flag is seen
  stop = true;
  if (stopping) arm(0);
  errno = error;
}

void on_usr1(int) {
  save = true;
}

/// The time is over, for the step or for the save after it.
void on_alarm(int) {
  if (given_up.exchange(true)) SaveSignals::die();
  const int error = errno;
  give_up_waits();
  arm(to_end_ms);
  errno = error;
}

long milliseconds_of(double seconds) {
  constexpr double kLeastMs = 500, kMostMs = 1e9;
  return static_cast<long>(std::clamp(1000.0 * 3.0 * seconds, kLeastMs, kMostMs));
}

}  // namespace

SaveSignals::SaveSignals(double longest_seconds, const std::string& socket_path) {
  const std::lock_guard lock(users_mutex);
  if (users++ > 0) return;
  stop = save = given_up = stopping = false;
  give_up_waits(false);
  hurry_file = socket_path.empty() ? "" : socket_path + std::string(training::kHurrySuffix);
  together_ms = patience_ms = 1;  // before the first step has ended there is nothing to save
  to_end_ms = kToEndMs;
  longest_ms = std::max(500L, static_cast<long>(1000.0 * longest_seconds));
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  SORTIE_CHECK(::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "no timer");
  handle_signal(SIGALRM, on_alarm, 0, old_alarm);
  handle_signal(SIGTERM, on_term, static_cast<int>(SA_RESETHAND), old_term);
  handle_signal(SIGUSR1, on_usr1, 0, old_usr1);
}

SaveSignals::~SaveSignals() {
  const std::lock_guard lock(users_mutex);
  if (--users > 0) return;
  ::timer_delete(timer);
  ::sigaction(SIGTERM, &old_term, nullptr);
  ::sigaction(SIGUSR1, &old_usr1, nullptr);
  ::sigaction(SIGALRM, &old_alarm, nullptr);
}

bool SaveSignals::stop_requested() const {
  return stop;
}

bool SaveSignals::take_save_request() {
  return save.exchange(false);
}

void SaveSignals::expect(double seconds) {
  // A slow step that is not stuck reaches its next wait, and then saves the state before it.
  const long whole = milliseconds_of(seconds);
  patience_ms = std::min<long>(whole, longest_ms);
  together_ms.store(longest_ms);
  to_end_ms = std::max(kToBeginMs, whole - patience_ms);
}

void SaveSignals::step_ended() {
  stopping = true;
  if (stop) arm(0);
}

void SaveSignals::last_save(double seconds) {
  given_up = true;  // the next alarm ends the process
  stopping = false;
  together_ms = patience_ms = milliseconds_of(seconds);
  if (stop) arm(patience_ms);
}

void SaveSignals::die() {
  ::signal(SIGTERM, SIG_DFL);
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_UNBLOCK, &term, nullptr);
  ::raise(SIGTERM);
  ::_exit(128 + SIGTERM);
}

}  // namespace sortie::trainer
