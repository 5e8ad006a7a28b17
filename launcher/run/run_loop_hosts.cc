// The run's loop: which hosts there are for the next attempt, and which are left out.
#include <fmt/format.h>

#include <algorithm>

#include "common/config/hostlist.h"
#include "launcher/nodes/acceptance.h"
#include "launcher/run/run_loop.h"

namespace sortie::launcher {

HostPool RunLoop::pool() {
  HostPool pool;
  for (const config::HostSlots& host : hosts_) {
    pool.hosts.push_back(host.name);
    pool.slots[host.name] = host.slots.size();
  }
  for (const config::HostSlots& spare : parts_.spares) {
    pool.slots.emplace(spare.name, spare.slots.size());
    if (std::ranges::find(pool.hosts, spare.name) != pool.hosts.end()) continue;
    const bool unusable = std::ranges::any_of(
        history_, [&](const AttemptEnd& end) { return end.unusable_hosts.contains(spare.name); });
    if (!unusable && !unfit_.contains(spare.name)) pool.spares.push_back(spare.name);
  }
  if (parts_.known_hosts) {
    if (auto known = parts_.known_hosts()) {
      pool.cordoned = std::move(known->cordoned);
      pool.breaker_open = known->breaker_open;
    } else {
      parts_.attempt.console.error(known.error().message);
      pool.breaker_open = true;
    }
  }
  pool.legal = [this](const std::vector<std::string>& hosts) { return may_run_on(hosts); };
  return pool;
}

bool RunLoop::may_run_on(const std::vector<std::string>& hosts) const {
  std::int64_t ranks = 0;
  for (const config::HostSlots& host : hosts_)
    if (std::ranges::find(hosts, host.name) != hosts.end())
      ranks += static_cast<std::int64_t>(host.slots.size());
  return parts_.replan && ranks > 0 && topology_on(ranks);
}

void RunLoop::cordon(const std::vector<std::string>& hosts) {
  if (hosts.empty() || !parts_.cordon) return;
  std::vector<std::string> all;
  for (const auto* list : {&hosts_, &parts_.spares})
    for (const config::HostSlots& host : *list) all.push_back(host.name);
  const ReasonOf reason_of = [this](const std::string& host) {
    std::string why = "blamed for failures";
    for (const AttemptEnd& end : history_)
      if (end.blamed_host == host) why = end.cause;
    return std::pair(why, static_cast<std::uint32_t>(blames_of(history_, host)));
  };
  const Result<CordonOutcome> outcome = parts_.cordon(hosts, reason_of, all);
  Console& console = parts_.attempt.console;
  if (!outcome) return console.error(outcome.error().message);
  if (!outcome->cordoned.empty())
    console.message(
        fmt::format("{}: cordoned; `sortie nodes ls` says why, `sortie nodes uncordon` "
                    "takes it back",
                    config::fold_host_names(outcome->cordoned)));
  if (outcome->breaker_open)
    console.error(
        "too many hosts were cordoned lately: no further ones are; see `sortie nodes breaker`");
}

boost::asio::awaitable<bool> RunLoop::spares_are_fit(const Decision& decision) {
  if (parts_.acceptance.count() == 0) co_return true;
  bool fit = true;
  for (const config::HostSlots& spare : parts_.spares) {
    if (!decision.replaced.contains(spare.name) || stop_order_) continue;
    const AcceptanceJob job{job_, plan_, parts_.attempt.binary};
    config::HostSlots copy = spare;
    const Result<> accepted = co_await accept_spare(
        parts_.attempt.executor, parts_.attempt.transport, job, std::move(copy), parts_.acceptance);
    if (accepted) continue;
    fit = false;
    unfit_.insert(spare.name);
    parts_.attempt.console.error(
        fmt::format("spare {} is not fit: {}", spare.name, accepted.error().message));
  }
  co_return fit;
}

}  // namespace sortie::launcher
