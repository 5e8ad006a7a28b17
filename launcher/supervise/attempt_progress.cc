// Attempt: progress messages while hosts are being connected and prepared.
#include <fmt/core.h>

#include "common/asio/token.h"

#include "launcher/supervise/attempt.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Shows the progress to the user, from the second second on.
asio::awaitable<void> Attempt::show_progress(std::shared_ptr<bool> done) {
  auto pause = std::chrono::milliseconds(1000);
  while (!*done) {
    progress_timer_.expires_after(pause);
    co_await progress_timer_.async_wait(kToken);
    if (*done) co_return;
    if (stage_pace_)
      show_stage_progress();
    else
      parts_.console.progress(progress_text());
    pause = std::chrono::milliseconds(200);
  }
}

/// Reports when this process did not run for a while: it sent no heartbeats then, which may explain
/// a lost host.
asio::awaitable<void> Attempt::note_stalls(std::shared_ptr<bool> ended) {
  constexpr std::chrono::milliseconds kTick{500}, kStall{1000};
  while (!*ended) {
    const Clock::time_point due = Clock::now() + kTick;
    stall_timer_.expires_at(due);
    co_await stall_timer_.async_wait(kToken);
    if (*ended) co_return;
    const Clock::duration late = Clock::now() - due;
    if (late < kStall) continue;
    const double seconds = std::chrono::duration<double>(late).count();
    parts_.folder.event(JournalEvent::stalled, {{"seconds", seconds}});
    if (late > milliseconds(job_.runner.heartbeat_timeout) / 2)
      parts_.console.error(fmt::format(
          "this launcher did not run for {:.1f} s (its machine slept, or had no processor, memory "
          "or disk for it); hosts may take it for lost after runner.heartbeat_timeout",
          seconds));
  }
}

std::string Attempt::progress_text() const {
  if (imaging_) return image_progress_text();
  std::size_t connected = 0, ready = 0, pushing = 0;
  for (const Host& host : hosts_) {
    connected += host.state != HostState::connecting;
    ready += host.state == HostState::ready;
    pushing += host.state == HostState::connecting && host.session->pushing();
  }
  if (connected == hosts_.size()) return fmt::format("preparing {}/{} hosts", ready, hosts_.size());
  std::string text = fmt::format("connecting {}/{} hosts", connected, hosts_.size());
  if (pushing > 0) text += fmt::format(", pushing the runner to {}", pushing);
  return text;
}

}  // namespace sortie::launcher
