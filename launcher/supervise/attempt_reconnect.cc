// Attempt: a host whose connection broke while its runner holds the ranks
// (runner.on_launcher_loss). The host still counts as running until it is reached again or the hold
// ends.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/asio/spawn.h"
#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "common/config/hostlist.h"
#include "launcher/host/host_errors.h"
#include "launcher/host/reconnect.h"
#include "launcher/run/successor.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {
/// Hosts that are lost or reconnected within this time are reported together.
constexpr milliseconds kNewsTime{300};
/// If a connection breaks within kFlapTime after a reconnect, the next try waits for kFlapPause,
/// because the connection may break again and again.
constexpr milliseconds kFlapTime{5000}, kFlapPause{1000};
}  // namespace

void Attempt::on_lost(Host& host, Error error) {
  if (host.state == HostState::finished) {  // the runner ended after Goodbye
    if (leaving_ > 0 && --leaving_ == 0) wake();
    return;
  }
  if (host.state != HostState::running || superseded()) return;
  if (may_reconnect(host, error)) return start_reconnect(host, std::move(error));
  lose(host, std::move(error));
}

void Attempt::note_loss(Host& host) {
  host.lost_at = Clock::now();
  host.lost_boot_ms = boot_ms();
}

/// Gives up on the host without another reconnect. The failure is dated by the loss of the
/// connection: what peers did during the attempts to reconnect followed from it.
void Attempt::lose(Host& host, Error error) {
  if (host.state != HostState::running) return;
  end_of(host, HostState::lost);
  if (host.lost_at <= host.restored_at) note_loss(host);
  for (const RankPlan& rank : host.plan->ranks) parts_.console.end_of_rank(rank.rank);
  Cause cause;
  cause.what = Cause::What::lost;
  cause.host = host.plan->name;
  cause.message =
      fmt::format("{}: {}: {}", host.plan->name, error_code_name(ErrorCode::lost), error.message);
  cause.exit_code = kExitLost;
  cause.at_ms = host.lost_boot_ms;
  parts_.folder.event(
      JournalEvent::host_lost,
      {{"host", host.plan->name}, {"message", error.message}, {"consequence", failing()}});
  // Print it now: the verdict follows only after the sweep.
  parts_.console.error(cause.message);
  cause.shown = true;
  blame(std::move(cause));
  start_sweep(host);
}

bool Attempt::may_reconnect(const Host& host, const Error& error) const {
  // A runner that breaks the protocol would do so again.
  return hold_.count() > 0 && host.state == HostState::running && !ended_ &&
         error.code != ErrorCode::protocol;
}

void Attempt::start_reconnect(Host& host, Error error) {
  host.loss = std::move(error);
  note_loss(host);
  const double held = static_cast<double>(hold_.count()) / 1000;
  parts_.folder.event(JournalEvent::link_lost, {{"host", host.plan->name},
                                                {"link", host.link},
                                                {"message", host.loss->message},
                                                {"held_s", held}});
  lost_links_.emplace_back(host.plan->name, *host.loss);
  tell_links_soon();
  if (parts_.on_forwards_end) parts_.on_forwards_end(host.plan->name);
  const bool flaps = host.lost_at - host.restored_at < kFlapTime;
  host.way_back = std::make_shared<Reconnect>(
      way_to(host, hold_ + job_.runner.heartbeat_timeout, flaps ? kFlapPause : milliseconds(0)));
  spawn(parts_.executor, reconnect(host, host.way_back));
}

Reconnect::Parts Attempt::way_to(Host& host, milliseconds time, milliseconds first_pause) {
  const auto make_session = [this, &host] {
    auto session = std::make_shared<HostSession>(parts_.executor, host.plan->name, job_.runner);
    session->follow(*host.session);
    return session;
  };
  return {parts_.executor,
          parts_.transport,
          parts_.binary,
          make_session,
          [this, &host] { return adopt_order(host); },
          time,
          first_pause};
}

asio::awaitable<void> Attempt::reconnect(Host& host, std::shared_ptr<Reconnect> way) {
  ++reconnects_;
  co_await reconnect_by(host, std::move(way));
  --reconnects_;
}

asio::awaitable<void> Attempt::reconnect_by(Host& host, std::shared_ptr<Reconnect> way) {
  // If the disk does not answer, the runner knows whether it was adopted.
  const std::optional<bool> newer = co_await has_successor(parts_.executor, parts_.folder);
  if (newer.value_or(false)) {
    superseded();
    co_return;
  }
  auto session = co_await way->run();
  const bool wanted = host.way_back == way && host.state == HostState::running && !superseded();
  if (!wanted) {
    if (session) (*session)->close();
    co_return;
  }
  host.way_back.reset();
  if (session)
    resume(host, std::move(*session), way->attempts());
  else
    lose(host,
         {ErrorCode::lost, fmt::format("{}; {}", host.loss->message, session.error().message)});
}

void Attempt::resume(Host& host, std::shared_ptr<HostSession> session, unsigned attempts) {
  // What an earlier supervisor has taken is not missed.
  const bool first = host.session->last_heard() == Clock::time_point{};
  const std::uint64_t had = first ? session->events_taken() : host.session->events_taken();
  const std::uint64_t missed = session->events_taken() - std::min(had, session->events_taken());
  host.restored_at = Clock::now();
  host.session = std::move(session);
  host.unacknowledged = 0;
  host.unacknowledged_pieces = 0;
  const double seconds = std::chrono::duration<double>(Clock::now() - host.lost_at).count();
  nlohmann::ordered_json fields = {
      {"host", host.plan->name}, {"link", host.link}, {"attempts", attempts}, {"seconds", seconds}};
  if (missed > 0) fields["events_missed"] = missed;
  parts_.folder.event(JournalEvent::link_restored, fields);
  restored_links_.push_back(host.plan->name);
  longest_gap_s_ = std::max(longest_gap_s_, seconds);
  tell_links_soon();
  listen_to(host);
  forward(relay_.on_reconnected(host.index));
  if (!stopping_) return;
  const auto left =
      std::chrono::duration_cast<milliseconds>(stop_deadline_ - parts_.stop_slack - Clock::now());
  host.session->send(wire::Stop{static_cast<std::uint32_t>(std::max<std::int64_t>(0, left.count())),
                                "the run is being stopped", peers_lost()});
}

void Attempt::abandon_reconnect(Host& host) {
  if (const auto way = std::exchange(host.way_back, nullptr)) way->give_up();
}

void Attempt::tell_links_soon() {
  if (std::exchange(telling_links_, true)) return;
  links_timer_.set(kNewsTime, [this] { tell_links(); });
}

/// Reports lost and restored connections in groups: when a laptop wakes up, all of its hosts are
/// lost and reconnected at the same time.
void Attempt::tell_links() {
  telling_links_ = false;
  if (superseded_) return;
  if (const auto lost = std::exchange(lost_links_, {}); !lost.empty())
    parts_.console.error(
        fmt::format("{}\nthe ranks there are held for {} "
                    "(runner.on_launcher_loss); reconnecting",
                    fold_errors(lost), short_time(static_cast<double>(hold_.count()) / 1000)));
  if (const auto back = std::exchange(restored_links_, {}); !back.empty())
    parts_.console.message(fmt::format("{}: connected again after {}; the run continues",
                                       config::fold_host_names(back),
                                       short_time(std::exchange(longest_gap_s_, 0))));
}

}  // namespace sortie::launcher
