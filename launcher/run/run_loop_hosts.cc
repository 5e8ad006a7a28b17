// RunLoop: which hosts are available for the next attempt, and which are left out.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/config/hostlist.h"
#include "launcher/recovery/spares.h"
#include "launcher/run/run_loop.h"

namespace sortie::launcher {
namespace asio = boost::asio;

namespace {

/// What the user sees if the disk does not answer in time.
template <typename Value>
Result<Value> or_stalled(std::optional<Result<Value>> answer, std::string_view consequence) {
  if (answer) return std::move(*answer);
  return fail(ErrorCode::timeout,
              fmt::format("nodes.json: the disk does not answer; {}", consequence));
}

}  // namespace

/// Reads what all runs of this user know about hosts. Then pool() has it.
asio::awaitable<void> RunLoop::read_known_hosts(std::shared_ptr<GiveUp> give_up) {
  if (!parts_.known_hosts) co_return;
  auto answer = co_await parts_.file_calls.call(parts_.known_hosts, give_up);
  if (!answer && give_up && give_up->given_up()) co_return;
  auto known = or_stalled(std::move(answer), "which hosts are cordoned now is not known");
  if (!known) {
    parts_.attempt.console.error(known.error().message);
    known_.breaker_open = true;
    co_return;
  }
  known_ = std::move(*known);
  std::erase_if(cordoned_here_, [&](const std::string& host) {
    if (known_.cordoned.contains(host)) return false;
    forgiven_[host] = blames_of(history_, host);
    chronic_.erase(host);
    return true;
  });
}

HostPool RunLoop::pool() const {
  HostPool pool;
  for (const config::HostSlots& place : parts_.places) {
    pool.places.push_back(place.name);
    pool.slots[place.name] = place.slots.size();
  }
  for (const config::HostSlots& host : hosts_) {
    pool.hosts.push_back(host.name);
    pool.slots[host.name] = host.slots.size();
  }
  for (const config::HostSlots& spare : parts_.spares) {
    pool.slots.emplace(spare.name, spare.slots.size());
    if (std::ranges::find(pool.hosts, spare.name) != pool.hosts.end()) continue;
    const bool unusable = std::ranges::any_of(
        history_, [&](const AttemptEnd& end) { return end.unusable_hosts.contains(spare.name); });
    if (fit_.contains(spare.name) || (!unusable && !unfit_.contains(spare.name)))
      pool.spares.push_back(spare.name);
  }
  pool.fit = fit_;
  for (const auto& [host, why] : chronic_) pool.chronic.insert(host);
  pool.cordoned = known_.cordoned;
  pool.breaker_open = known_.breaker_open;
  pool.forgiven = forgiven_;
  pool.legal = [this](const std::vector<std::string>& hosts) { return may_run_on(hosts); };
  return pool;
}

/// The hosts of the last attempt, followed by the hosts of the job that it did not use.
std::vector<config::HostSlots> RunLoop::with_places() const {
  std::vector<config::HostSlots> out = hosts_;
  for (const config::HostSlots& place : parts_.places)
    if (!holds(out, place.name)) out.push_back(place);
  return out;
}

bool RunLoop::may_run_on(const std::vector<std::string>& hosts) const {
  std::int64_t ranks = 0;
  for (const config::HostSlots& host : with_places())
    if (std::ranges::find(hosts, host.name) != hosts.end())
      ranks += static_cast<std::int64_t>(host.slots.size());
  return parts_.replan && ranks > 0 && topology_on(ranks);
}

CordonOrder RunLoop::cordon_order(const std::string& host) const {
  const auto blames = static_cast<std::uint32_t>(blames_of(history_, host));
  if (const auto known = chronic_.find(host); known != chronic_.end() && blames < 2)
    return {host, known->second, 1};
  CordonOrder order{host, "blamed for failures", blames};
  for (const AttemptEnd& end : history_)
    if (end.blamed_host == host) order.reason = end.cause;
  return order;
}

asio::awaitable<void> RunLoop::cordon(std::vector<std::string> hosts) {
  if (hosts.empty() || !parts_.cordon) co_return;
  std::vector<std::string> all;
  for (const auto* list : {&hosts_, &parts_.spares})
    for (const config::HostSlots& host : *list) all.push_back(host.name);
  std::vector<CordonOrder> orders;
  for (const std::string& host : hosts) orders.push_back(cordon_order(host));
  const std::function<Result<CordonOutcome>()> work = [cordon = parts_.cordon, orders, all] {
    return cordon(orders, all);
  };
  auto answer = co_await parts_.file_calls.call(work, nullptr);
  const std::string consequence =
      fmt::format("{} may not be cordoned: see `sortie nodes ls`", config::fold_host_names(hosts));
  const Result<CordonOutcome> outcome = or_stalled(std::move(answer), consequence);
  Console& console = parts_.attempt.console;
  if (!outcome) {
    console.error(outcome.error().message);
    co_return;
  }
  cordoned_here_.insert(outcome->cordoned.begin(), outcome->cordoned.end());
  if (!outcome->cordoned.empty())
    console.message(
        fmt::format("{}: cordoned; `sortie nodes ls` says why, `sortie nodes uncordon` "
                    "takes it back",
                    config::fold_host_names(outcome->cordoned)));
  if (outcome->breaker_open)
    console.error(
        "too many hosts were cordoned lately: no further ones are; see `sortie nodes breaker`");
}

asio::awaitable<bool> RunLoop::joiners_are_fit(const Decision& decision) {
  bool fit = true;
  for (config::HostSlots& host :
       with_slots(decision.hosts, with_places(), parts_.spares, decision.replaced)) {
    const std::string name = host.name;
    if (holds(hosts_, name) || stop_order_) continue;
    const Result<> accepted = co_await check_fitness(std::move(host));
    if (accepted || stop_order_) continue;  // the run ends: the host is not to blame
    fit = false;
    unfit_.insert(name);
    fit_.erase(name);
    parts_.attempt.console.error(fmt::format("{}{} is not fit: {}",
                                             holds(parts_.places, name) ? "" : "spare ", name,
                                             accepted.error().message));
  }
  co_return fit;
}

/// Records for all runs of this user how many failures of this run blame each host. A first attempt
/// that could not be set up blames no host, because the config may be wrong.
asio::awaitable<void> RunLoop::note_blames() {
  if (!parts_.note_blames || first_job_.recovery.cordon_runs == 0) co_return;
  // Forgives hosts that the user has uncordoned.
  if (!cordoned_here_.empty()) co_await read_known_hosts(nullptr);
  std::map<std::string, Blame> by_host;
  for (std::size_t i = 0; i < history_.size(); ++i) {
    const AttemptEnd& end = history_[i];
    const std::string& host = end.blamed_host;
    const FailureClass failure = class_of(history_, i);
    if (host.empty() || failure == FailureClass::setup) continue;
    by_host[host] = {host,
                     "",
                     std::string(failure_class_name(failure)),
                     end.cause,
                     static_cast<std::uint32_t>(blames_left(history_, host, forgiven_)),
                     end.ended};
  }
  if (by_host.empty()) co_return;
  std::vector<Blame> blames;
  for (const auto& [host, blame] : by_host) blames.push_back(blame);
  const std::function<Result<std::map<std::string, std::string>>()> work =
      [note = parts_.note_blames, blames] { return note(blames); };
  auto answer = co_await parts_.file_calls.call(work, nullptr);
  auto chronic = or_stalled(std::move(answer), "the blames of this failure may not be recorded");
  if (!chronic) {
    parts_.attempt.console.error(chronic.error().message);
    co_return;
  }
  std::erase_if(*chronic, [&](const auto& entry) {
    const auto known = by_host.find(entry.first);
    return known == by_host.end() || known->second.times == 0;
  });
  chronic_ = std::move(*chronic);
}

/// Cordons hosts that several runs blame and that this run kept because it needed them; it has
/// ended now. A run that never restarts only records blames and cordons no host, because the user
/// may have ended it.
asio::awaitable<void> RunLoop::cordon_chronic() {
  if (!first_job_.recovery.cordon || !recovers()) co_return;
  std::vector<std::string> hosts;
  for (const auto& [host, why] : chronic_)
    if (host != "localhost" && !cordoned_here_.contains(host)) hosts.push_back(host);
  co_await cordon(std::move(hosts));
}

}  // namespace sortie::launcher
