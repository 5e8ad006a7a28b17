// RunLoop: which hosts are available for the next attempt, and which are left out.
#include <fmt/format.h>

#include <algorithm>

#include "common/config/hostlist.h"
#include "launcher/recovery/spares.h"
#include "launcher/run/run_loop.h"

namespace sortie::launcher {

HostPool RunLoop::pool() {
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
  if (parts_.known_hosts) {
    if (auto known = parts_.known_hosts()) {
      pool.cordoned = std::move(known->cordoned);
      pool.breaker_open = known->breaker_open;
      std::erase_if(cordoned_here_, [&](const std::string& host) {
        if (pool.cordoned.contains(host)) return false;
        forgiven_[host] = blames_of(history_, host);
        chronic_.erase(host);
        pool.chronic.erase(host);
        return true;
      });
    } else {
      parts_.attempt.console.error(known.error().message);
      pool.breaker_open = true;
    }
  }
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

void RunLoop::cordon(const std::vector<std::string>& hosts) {
  if (hosts.empty() || !parts_.cordon) return;
  std::vector<std::string> all;
  for (const auto* list : {&hosts_, &parts_.spares})
    for (const config::HostSlots& host : *list) all.push_back(host.name);
  const ReasonOf reason_of = [this](const std::string& host) {
    std::string why = "blamed for failures";
    if (const auto known = chronic_.find(host);
        known != chronic_.end() && blames_of(history_, host) < 2)
      return std::pair(known->second, 1u);
    for (const AttemptEnd& end : history_)
      if (end.blamed_host == host) why = end.cause;
    return std::pair(why, static_cast<std::uint32_t>(blames_of(history_, host)));
  };
  const Result<CordonOutcome> outcome = parts_.cordon(hosts, reason_of, all);
  Console& console = parts_.attempt.console;
  if (!outcome) return console.error(outcome.error().message);
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

boost::asio::awaitable<bool> RunLoop::joiners_are_fit(const Decision& decision) {
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
void RunLoop::note_blames() {
  if (!parts_.note_blames || first_job_.recovery.cordon_runs == 0) return;
  if (!cordoned_here_.empty()) pool();  // forgives hosts that the user has uncordoned
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
  if (by_host.empty()) return;
  std::vector<Blame> blames;
  for (const auto& [host, blame] : by_host) blames.push_back(blame);
  auto chronic = parts_.note_blames(std::move(blames));
  if (!chronic) return parts_.attempt.console.error(chronic.error().message);
  std::erase_if(*chronic, [&](const auto& entry) {
    const auto known = by_host.find(entry.first);
    return known == by_host.end() || known->second.times == 0;
  });
  chronic_ = std::move(*chronic);
}

/// Cordons hosts that several runs blame and that this run kept because it needed them; it has
/// ended now. A run that never restarts only records blames and cordons no host, because the user
/// may have ended it.
void RunLoop::cordon_chronic() {
  if (!first_job_.recovery.cordon || !recovers()) return;
  std::vector<std::string> hosts;
  for (const auto& [host, why] : chronic_)
    if (host != "localhost" && !cordoned_here_.contains(host)) hosts.push_back(host);
  cordon(hosts);
}

}  // namespace sortie::launcher
