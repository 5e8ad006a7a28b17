// RunLoop: messages to the user, and how a run is stopped.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/exit_code.h"
#include "common/base/process_status.h"
#include "launcher/run/run_loop.h"

namespace sortie::launcher {

/// Ends the run with the last attempt, and reports why no further attempt follows.
void RunLoop::conclude(const Decision& decision, Verdict& verdict) {
  std::string why = decision.reason;
  if (decision.no_progress) {
    verdict.exit_code = kExitNoProgress;
    const auto row = static_cast<std::size_t>(without_progress(first_job_.recovery, history_));
    why += ":\n" + ends_text(history_, row);
  }
  if (verdict.shown) parts_.attempt.console.error(why);
  verdict.text += (verdict.text.empty() ? "" : "\n") + why;
}

void RunLoop::say_restart(const Decision& decision, const Verdict& verdict) {
  Console& console = parts_.attempt.console;
  if (history_.back().failure == FailureClass::planned)
    return console.message(
        fmt::format("attempt {} has ended; {}", history_.back().attempt, decision.reason));
  if (!verdict.shown && !verdict.text.empty()) console.error(verdict.text);
  if (!verdict.aftermath.empty()) console.message(verdict.aftermath);
  console.message(
      fmt::format("attempt {} has failed; {}", history_.back().attempt, decision.reason));
}

/// Calls `act`, which orders the attempts to stop. The first order is deferred until a running
/// adoption is complete: hosts hand their ranks over within a moment, and end them in order then. A
/// second order is not, as one of the hosts may not answer. The attempt then ends ranks by sweeps.
void RunLoop::order_stop(bool first, const std::function<void()>& act) {
  if (first) return after_adoption(act);
  if (adopting()) adoption_look_.cancel();  // the attempt gets one order instead of two
  act();
}

bool RunLoop::adopting() const {
  return !started_.empty() && started_.back()->adopted &&
         std::string_view(started_.back()->attempt->state()) == "starting";
}

void RunLoop::after_adoption(std::function<void()> act) {
  constexpr std::chrono::milliseconds kLook{20};
  if (ended_) return;
  if (!adopting()) return act();
  adoption_look_.set(kLook, [this, act] { after_adoption(act); });
}

void RunLoop::interrupt(int signal_number) {
  if (ended_) return;
  const bool first = !stop_order_;
  if (first) stop_order_ = {128 + signal_number, "interrupted by " + signal_name(signal_number)};
  pause_.cancel();
  give_up_->give_up();
  if (memory_) memory_->stop_waiting(!first);
  const auto act = [this, signal_number] {
    for (const auto& started : started_) started->attempt->interrupt(signal_number);
  };
  order_stop(first, act);
}

void RunLoop::stop(bool now) {
  stop(now, "`sortie stop`");
}

void RunLoop::stop(bool now, const std::string& by) {
  if (ended_) return;
  const bool first = !stop_order_;
  if (first) stop_order_ = {128 + SIGTERM, "stopped by " + by};
  pause_.cancel();
  give_up_->give_up();
  if (memory_) memory_->stop_waiting(now);
  const auto act = [this, now, by] {
    for (const auto& started : started_) started->attempt->stop(now, by);
  };
  order_stop(first, act);
}

nlohmann::ordered_json RunLoop::progress() const {
  if (between_ || started_.empty()) return nullptr;
  return started_.back()->attempt->progress();
}

bool RunLoop::send_forward(const std::string& host, const wire::Message& message) {
  return !between_ && !started_.empty() && started_.back()->attempt->send_forward(host, message);
}

void RunLoop::answer(std::uint32_t rank, std::string json) {
  if (!between_ && !started_.empty()) started_.back()->attempt->answer(rank, std::move(json));
}

boost::asio::awaitable<Result<nlohmann::ordered_json>> SupervisedRun::sites_order(nlohmann::json) {
  co_return fail(ErrorCode::usage,
                 "this run has no sites; give its hosts site=NAME to train over several");
}

bool RunLoop::has_host(const std::string& name) const {
  return std::ranges::find(plan_.hosts, name, &HostPlan::name) != plan_.hosts.end();
}

const char* RunLoop::state() const {
  if (stop_order_) return "stopping";
  if (between_ || started_.empty()) return between_ ? "restarting" : "starting";
  return started_.back()->attempt->state();
}

}  // namespace sortie::launcher
