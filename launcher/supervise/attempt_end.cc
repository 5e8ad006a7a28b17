// Attempt: after the ranks. Runners clean up and exit, hosts that do not end their ranks are given
// up, and lost hosts are swept.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/quantity.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Makes the runners clean up and exit. A runner that does not answer is left to its lease.
asio::awaitable<void> Attempt::let_runners_go() {
  constexpr milliseconds kGoodbyeTime{2000};
  for (Host& host : hosts_)
    if (host.state == HostState::finished) host.session->say_goodbye();
  std::vector<Host*> away;
  leaving_ = 0;
  for (Host& host : hosts_) {
    if (host.state != HostState::finished) continue;
    const bool closed = host.session->closed();
    if (closed && host.waits_for_goodbye) away.push_back(&host);
    if (!closed || host.waits_for_goodbye) ++leaving_;
  }
  for (Host* const host : away) start_farewell(*host);
  const auto deadline =
      Clock::now() + (away.empty() ? kGoodbyeTime : std::max(kGoodbyeTime, parts_.sweep_reach));
  while (Clock::now() < deadline && leaving_ > 0) {
    changed_.expires_at(deadline);
    co_await changed_.async_wait(kToken);
  }
  for (Host& host : hosts_) {
    if (host.state == HostState::finished && host.way_back)
      note_left(host, fmt::format("its connection broke after its ranks had ended, and it is not "
                                  "reached again: its runner exits after a hold of {} "
                                  "(runner.on_launcher_loss)",
                                  short_time(static_cast<double>(hold_.count()) / 1000)));
    abandon_reconnect(host);
    host.session->close();
  }
  tell_links();
}

/// A runner whose connection broke after its last rank had ended holds its results for the hold,
/// although they have arrived: it is reached once more to let it exit.
void Attempt::start_farewell(Host& host) {
  host.way_back = std::make_shared<Reconnect>(way_to(host, hold_, milliseconds(0)));
  spawn(parts_.executor, farewell(host, host.way_back));
}

asio::awaitable<void> Attempt::farewell(Host& host, std::shared_ptr<Reconnect> way) {
  ++reconnects_;
  auto session = co_await way->run();
  --reconnects_;
  if (host.way_back != way) {  // given up
    if (session) (*session)->close();
    co_return;
  }
  host.way_back.reset();
  if (session) {
    host.session = std::move(*session);
    host.session->start({[](const wire::Message&) {},  // what it sends again is known
                         [this, &host](Error error) { on_lost(host, std::move(error)); }});
    host.session->say_goodbye();
  } else if (leaving_ > 0 && --leaving_ == 0) {  // no runner is left there
    wake();
  }
}

void Attempt::give_up_on(Host& host) {
  parts_.console.error(fmt::format(
      "{}: ranks did not end within {:.3g} s after the order to stop; a process there may hang",
      host.plan->name, static_cast<double>(grace_ms_ + parts_.stop_slack.count()) / 1000));
  parts_.folder.event(JournalEvent::not_ended, {{"host", host.plan->name}});
  end_of(host, HostState::lost);
  if (host.lost_at <= host.restored_at) note_loss(host);
  abandon_reconnect(host);
  host.session->close();
  start_sweep(host);
}

asio::awaitable<void> Attempt::swept() {
  while (sweeps_ > 0 && interrupts_ < 2) {
    changed_.expires_at(Clock::time_point::max());
    co_await changed_.async_wait(kToken);
  }
  ended_ = true;
  for (Host& host : hosts_)
    if (host.sweeping)
      note_swept(host, fail(ErrorCode::interrupted, "interrupted before the host was reached"));
}

}  // namespace sortie::launcher
