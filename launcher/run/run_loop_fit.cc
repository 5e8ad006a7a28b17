// RunLoop: hosts that are fit again and rejoin, and slow hosts that leave. During an attempt the
// loop only requests a restart; the attempt ends itself after a commit.
#include <fmt/format.h>

#include <algorithm>

#include "common/asio/token.h"
#include "launcher/recovery/place_hosts.h"
#include "launcher/recovery/spares.h"
#include "launcher/run/run_loop.h"

namespace sortie::launcher {
namespace asio = boost::asio;

/// Callers await it before the job or the plan changes, and before the run ends.
asio::awaitable<Result<>> RunLoop::check_fitness(config::HostSlots host) {
  if (!parts_.fitness) co_return Result<>();
  co_return co_await parts_.fitness(job_, plan_, std::move(host), give_up_);
}

/// Cancels the checks that run concurrently with the attempt, after it has ended, and waits for
/// them. So no check is running when the run ends and its references become invalid.
asio::awaitable<void> RunLoop::end_of_looking() {
  give_up_->give_up();
  fit_timer_.cancel();
  co_await looking_.wait();
  give_up_ = std::make_shared<GiveUp>();
  if (stop_order_) give_up_->give_up();
}

/// Hosts of the job that do not take part, and spares that the run had to leave, except hosts that
/// are cordoned, sick or slow. Empty while all places are taken and no spare was left.
std::vector<config::HostSlots> RunLoop::hosts_to_check(HostPool pool) const {
  std::vector<config::HostSlots> out;
  const std::set<std::string> slow = slow_hosts_of(history_);
  const bool grows = first_job_.recovery.grow_at != "never" && hosts_.size() < parts_.places.size();
  for (const auto* list : {&parts_.places, &parts_.spares})
    for (const config::HostSlots& host : *list) {
      const bool left = std::ranges::any_of(
          history_, [&](const AttemptEnd& end) { return end.unusable_hosts.contains(host.name); });
      const bool wanted = grows || (list == &parts_.spares && (left || unfit_.contains(host.name)));
      const bool sick = pool.chronic.contains(host.name) ||
                        blames_left(history_, host.name, pool.forgiven) >= kBlamesOfASickHost;
      if (wanted && !sick && !slow.contains(host.name) && !holds(hosts_, host.name) &&
          !holds(out, host.name) && !pool.cordoned.contains(host.name))
        out.push_back(host);
    }
  return out;
}

/// Checks one host every recovery.fit_interval, round-robin, until the attempt ends.
asio::awaitable<void> RunLoop::look_for_fit_hosts() {
  const auto over = give_up_;
  if (!parts_.fitness || !recovers()) co_return;
  for (std::size_t turn = 0; !over->given_up(); ++turn) {
    fit_timer_.expires_after(first_job_.recovery.fit_interval);
    co_await fit_timer_.async_wait(kToken);
    if (over->given_up()) co_return;
    if (history_.empty()) continue;  // first attempt: all hosts take part
    co_await read_known_hosts(over);
    if (over->given_up()) co_return;
    const std::vector<config::HostSlots> hosts = hosts_to_check(pool());
    if (hosts.empty()) continue;
    config::HostSlots host = hosts[turn % hosts.size()];
    const std::string name = host.name;
    const Result<> accepted = co_await check_fitness(std::move(host));
    if (over->given_up()) co_return;
    if (!accepted) {
      fit_.erase(name);
      continue;
    }
    if (fit_.insert(name).second) {
      unfit_.erase(name);
      parts_.attempt.folder.event(JournalEvent::host_fit, {{"host", name}});
      parts_.attempt.console.message(fmt::format("{} is fit again", name));
    }
    co_await read_known_hosts(over);  // a check takes seconds
    if (over->given_up()) co_return;
    take_in_if_larger();
  }
}

/// Requests a restart with more hosts, if recovery.grow_at is "checkpoint".
void RunLoop::take_in_if_larger() {
  if (first_job_.recovery.grow_at != "checkpoint" || stop_order_ || started_.empty()) return;
  HostPool known = pool();
  // A spare without a passed check could turn out to be unfit after the ranks have ended.
  std::erase_if(known.spares, [&](const std::string& spare) { return !fit_.contains(spare); });
  if (const auto placement = larger(first_job_.recovery, history_, known))
    if (!growing_) growing_ = started_.back()->attempt->end_for_restart(placement->text);
}

/// Replaces a slow host: finds a spare and checks it before the attempt is asked to end.
asio::awaitable<void> RunLoop::swap_slow_host(std::string host) {
  const auto over = give_up_;
  if (!recovers() || first_job_.recovery.slow_swaps == 0) co_return;
  for (;;) {
    co_await read_known_hosts(over);
    if (over->given_up()) co_return;
    const auto spare = swap_for_slow(first_job_.recovery, history_, pool(), leaving_, host);
    if (!spare) {
      parts_.attempt.console.message(fmt::format(
          "{} stays: no spare is left for it, or recovery.slow_swaps hosts have left", host));
      co_return;
    }
    leaving_.insert(host);
    Result<> accepted;
    std::vector<config::HostSlots> known = with_places();
    known.insert(known.begin(), parts_.spares.begin(), parts_.spares.end());
    const auto slots = std::ranges::find(known, *spare, &config::HostSlots::name);
    if (slots != known.end()) {
      accepted = co_await check_fitness(*slots);
      if (over->given_up()) co_return;
    }
    if (accepted) {
      started_.back()->attempt->end_for_restart(
          fmt::format("{} is slow: {} takes its place", host, *spare));
      co_return;
    }
    leaving_.erase(host);
    unfit_.insert(*spare);
    fit_.erase(*spare);
    parts_.attempt.console.error(
        fmt::format("{} is not fit: {}", *spare, accepted.error().message));
  }
}

}  // namespace sortie::launcher
