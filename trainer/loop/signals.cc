#include "trainer/loop/signals.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

// What signal handlers may touch: lock-free atomics and the timer's number.
std::atomic<bool> stop{false}, save{false};
std::atomic<long> patience_ms{0};
timer_t timer;
struct sigaction old_term, old_usr1;

void arm(long milliseconds) {
  itimerspec value{};
  value.it_value.tv_sec = milliseconds / 1000;
  value.it_value.tv_nsec = milliseconds % 1000 * 1'000'000;
  ::timer_settime(timer, 0, &value, nullptr);
}

void on_term(int) {
  arm(patience_ms);  // before the flag: who sees the flag finds the timer set
  stop = true;
}

void on_usr1(int) {
  save = true;
}

}  // namespace

SaveSignals::SaveSignals() {
  stop = save = false;
  patience_ms = 1;  // before the first step has ended there is nothing to save
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  SORTIE_CHECK(::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "no timer");
  struct sigaction action {};
  action.sa_handler = on_term;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGTERM, &action, &old_term);
  action.sa_handler = on_usr1;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, &old_usr1);
}

SaveSignals::~SaveSignals() {
  ::timer_delete(timer);
  ::sigaction(SIGTERM, &old_term, nullptr);
  ::sigaction(SIGUSR1, &old_usr1, nullptr);
}

bool SaveSignals::stop_requested() const {
  return stop;
}

bool SaveSignals::take_save_request() {
  return save.exchange(false);
}

void SaveSignals::expect(double seconds) {
  constexpr double kLeastMs = 500, kMostMs = 1e9;
  patience_ms = static_cast<long>(std::clamp(1000.0 * 3.0 * seconds, kLeastMs, kMostMs));
}

void SaveSignals::step_ended() {
  if (stop) arm(0);
}

}  // namespace sortie::trainer
