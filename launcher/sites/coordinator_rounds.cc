// OuterCoordinator: grants the work of a round, and orders the exchanges of its results.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "launcher/sites/coordinator.h"
#include "launcher/sites/coordinator_lines.h"

namespace sortie::launcher {
using namespace sortie::training;
using OuterTime = OuterCoordinator::Time;

namespace {

constexpr std::size_t kKeptGrants = 4;
/// Sites whose step times differ by less than this fraction do equally many steps.
constexpr double kSameSpeed = 0.1;

double seconds_of(OuterTime time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

/// Whether the round is a plain step: one data-parallel step over all sites.
bool OuterCoordinator::plain(std::int64_t round) const {
  return !settings_.outer.rounds || round <= settings_.outer.start_after;
}

/// Number of steps of a site in a round: as many as fit into the time in which the fastest site
/// does outer.every steps; outer.every with outer.equal_steps.
std::int64_t OuterCoordinator::steps_for(const Site& site, std::int64_t round) const {
  if (plain(round)) return 1;
  const std::int64_t every = std::max<std::int64_t>(1, settings_.outer.every);
  const double own = site.steps.seconds();
  double fastest = own;
  for (const Site& other : sites_)
    if (const double step = other.steps.seconds(); other.in && step > 0)
      fastest = std::min(fastest, step);
  std::int64_t steps = every;
  if (!settings_.outer.equal_steps && own > fastest * (1 + kSameSpeed))
    steps = std::llround(static_cast<double>(every) * fastest / own);
  // A site that enters a running round does only the steps that fit into the rest of it.
  const auto grant = grants_.find(round);
  const auto whole = times_.whole();
  if (grant != grants_.end() && grant->second.since.count() >= 0 && whole && whole->count() > 0) {
    const OuterTime left = grant->second.since + *whole - now_;
    const double share = std::clamp(seconds_of(left) / seconds_of(*whole), 0.0, 1.0);
    steps = std::min<std::int64_t>(steps, std::llround(static_cast<double>(every) * share));
  }
  return std::clamp<std::int64_t>(steps, 1, every);
}

/// Samples of an inner step of one site.
std::int64_t OuterCoordinator::batch_of_site() const {
  const auto sites = static_cast<std::int64_t>(settings_.sites.size());
  return std::max<std::int64_t>(1, settings_.global_batch_size / sites);
}

OuterCoordinator::Work& OuterCoordinator::allocate_for(Site& site, std::int64_t round) {
  const std::int64_t steps = steps_for(site, round);
  Work& work = grants_[round].work[site.name];
  work = {steps, granted_, false};
  granted_ += steps * batch_of_site();
  return work;
}

/// Grants samples to all member sites in their order. With plain steps the samples of a step are
/// then the same as those of a single process.
void OuterCoordinator::allocate(std::int64_t round) {
  std::map<std::string, std::int64_t> steps;
  for (const Site& site : sites_)
    if (site.in) steps[site.name] = steps_for(site, round);
  Grant& grant = grants_[round];
  grant.since = now_;
  for (const Site& site : sites_) {
    if (!site.in) continue;
    grant.work[site.name] = {steps[site.name], granted_, false};
    granted_ += steps[site.name] * batch_of_site();
  }
  while (grants_.size() > kKeptGrants) grants_.erase(grants_.begin());
}

void OuterCoordinator::write_grant(std::int64_t round) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& [name, what] : grants_[round].work) all[name] = {what.steps, what.first};
  line(outer_line({{"do", "grant"}, {"round", round}, {"position", granted_}, {"work", all}}));
}

void OuterCoordinator::grant_work() {
  // Answer parts of a site that missed an answer which other parts got from an earlier supervisor
  // before it died.
  for (Site& site : sites_)
    for (auto& [part, leader] : site.leaders) {
      if (!site.in || !leader.asked || !std::holds_alternative<OuterNext>(*leader.asked)) continue;
      const auto known = grants_.find(std::get<OuterNext>(*leader.asked).round);
      if (known == grants_.end() || known->first != site.at) continue;
      const auto work = known->second.work.find(site.name);
      if (work == known->second.work.end() || !work->second.said) continue;
      answer(site, leader,
             OuterWork{site.at, work->second.steps, batch_of_site(), work->second.first});
    }
  if (count_in() < wanted_sites()) return;
  for (Site& site : sites_) {
    if (!site.in || !all_ask<OuterNext>(site)) continue;
    std::int64_t round = 0;
    bool same = true;
    for (const auto& [part, leader] : site.leaders) {
      const auto& next = std::get<OuterNext>(*leader.asked);
      same = same && (part == site.leaders.begin()->first || next.round == round);
      round = next.round;
      if (next.step_seconds > 0 && part == site.leaders.begin()->first)
        site.steps.note(next.step_seconds);
    }
    const std::int64_t has = std::ranges::min(site.done);
    if (!same || round < site.at || round <= has || round > has + 2 || has < this->round()) {
      answer_all(site, OuterRefused{fmt::format(
                           "round {} is not the next one of site {}, which has round {}; the run "
                           "has round {}; join again",
                           round, site.name, has, this->round())});
      lose(site, "is behind");
      continue;
    }
    const bool is_new = !grants_.contains(round);
    if (is_new) allocate(round);
    auto& works = grants_[round].work;
    const auto known = works.find(site.name);
    // Samples granted to the site before it rejoined are not granted again.
    const bool again = known == works.end() || (known->second.said && site.at < round);
    Work& work = again ? allocate_for(site, round) : known->second;
    work.said = true;
    site.at = round;
    answer_all(site, OuterWork{round, work.steps, batch_of_site(), work.first});
    if (is_new || again) write_grant(round);
  }
}

void OuterCoordinator::check_ready(Site& site) {
  if (!all_ask<OuterReady>(site)) return;
  const auto& first = std::get<OuterReady>(*site.leaders.begin()->second.asked);
  const bool same = std::ranges::all_of(site.leaders, [&](const auto& entry) {
    const auto& ready = std::get<OuterReady>(*entry.second.asked);
    return ready.round == first.round && ready.fragment == first.fragment;
  });
  const bool known =
      first.fragment >= 0 && first.fragment < static_cast<std::int64_t>(fragments_.size());
  const auto at = static_cast<std::size_t>(known ? first.fragment : 0);
  if (!same || !known || first.round != site.done[at] + 1 ||
      first.round != fragments_[at].committed + 1) {
    answer_all(site,
               OuterRefused{fmt::format("round {} of fragment {}: the run has round {} of it, site "
                                        "{} had {}; join again",
                                        first.round, first.fragment, fragments_[at].committed,
                                        site.name, site.done[at])});
    return lose(site, "is behind");
  }
  const bool brings = std::ranges::none_of(site.leaders, [](const auto& entry) {
    return std::get<OuterReady>(*entry.second.asked).abstains;
  });
  if (brings) site.copying = false;  // a site that contributes has the weights
  site.ready_at = now_;
}

void OuterCoordinator::order_exchanges() {
  if (stops_) return;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    const bool other = std::ranges::any_of(
        fragments_, [](const Fragment& fragment) { return fragment.order.has_value(); });
    if (!other) order_exchange(static_cast<std::int64_t>(i));
  }
}

void OuterCoordinator::order_exchange(std::int64_t number) {
  Fragment& fragment = fragments_[static_cast<std::size_t>(number)];
  std::vector<std::size_t> members;
  std::optional<Time> first;  // first ready site that contributes
  for (Site& site : sites_) {
    if (!site.in || !site.ready_at || !all_ask<OuterReady>(site)) continue;
    const auto& ready = std::get<OuterReady>(*site.leaders.begin()->second.asked);
    if (ready.fragment != number) continue;
    members.push_back(static_cast<std::size_t>(site.index));
    // A site that abstains may not even have begun: it may copy the weights in this exchange.
    if (!ready.abstains) first = std::min(first.value_or(*site.ready_at), *site.ready_at);
  }
  if (members.empty()) return;
  if (!first) {  // may any other site still contribute?
    const bool others = std::ranges::any_of(
        sites_, [](const Site& site) { return site.in && !site.copying && !site.ready_at; });
    if (!others) refuse_abstainers(members);
    return;
  }
  // A begun round is completed by the remaining sites, however few: only then can others join.
  const bool begun = std::ranges::any_of(
      fragments_, [&](const Fragment& other) { return other.committed > fragment.committed; });
  const std::int64_t wanted = begun ? 1 : wanted_sites();
  const std::string shunned = to_leave_out(fragment, members, wanted);
  if (!shunned.empty())
    std::erase_if(members, [&](std::size_t i) { return sites_[i].name == shunned; });
  if (end_unreachable(fragment, members)) return;
  if (shunned.empty() && now_ < fragment.retry_at) return due(fragment.retry_at);
  if (static_cast<std::int64_t>(members.size()) < wanted) return;
  const Time wait = settings_.outer.deadline.count() > 0 ? settings_.outer.deadline
                    : settings_.outer.equal_steps
                        ? RoundTimes::kLongest
                        : times_.deadline(static_cast<std::size_t>(count_in()));
  std::optional<Time> last;
  for (const Site& site : sites_) {
    const auto index = static_cast<std::size_t>(site.index);
    if (!site.in || site.name == shunned) continue;
    if (std::ranges::find(members, index) != members.end()) continue;
    Time limit = *first + wait;
    if (site.copying) limit = std::max(limit, site.joined_at + settings_.join_wait);
    last = std::max(last.value_or(limit), limit);
  }
  if (last && now_ < *last) return due(*last);
  give_order(number, members, *first);
}

/// Refuses all members if all abstain, because the round would have no result.
void OuterCoordinator::refuse_abstainers(const std::vector<std::size_t>& members) {
  std::string why = "no site has a change of the weights to offer";
  for (const std::size_t index : members) {
    const auto& ready = std::get<OuterReady>(*sites_[index].leaders.begin()->second.asked);
    if (!ready.reason.empty()) why += fmt::format("; {}: {}", sites_[index].name, ready.reason);
  }
  for (const std::size_t index : members) {
    answer_all(sites_[index], OuterRefused{why + "; join again"});
    lose(sites_[index], "abstains, as all do");
  }
}

void OuterCoordinator::give_order(std::int64_t number, const std::vector<std::size_t>& members,
                                  Time first) {
  Fragment& fragment = fragments_[static_cast<std::size_t>(number)];
  // A site abstains when one of its parts does.
  std::vector<double> weights;
  double sum = 0;
  for (const std::size_t index : members) {
    const Site& site = sites_[index];
    std::int64_t tokens = 0;
    bool abstains = false;
    for (const auto& [part, leader] : site.leaders) {
      const auto& ready = std::get<OuterReady>(*leader.asked);
      tokens = std::max(tokens, ready.tokens);
      abstains = abstains || ready.abstains;
    }
    const bool uniform = settings_.outer.weight == config::OuterWeight::uniform;
    weights.push_back(abstains                 ? 0.0
                      : uniform || tokens == 0 ? (uniform ? 1.0 : 0.0)
                                               : static_cast<double>(tokens));
    sum += weights.back();
  }
  if (sum <= 0) return refuse_abstainers(members);
  Order order{next_epoch_++, fragment.committed + 1, members, now_, now_ - first, {}, {}};
  const std::string key = new_key_();
  std::vector<std::string> names;
  for (const std::size_t index : members) names.push_back(sites_[index].name);
  line(outer_line({{"do", "order"},
                   {"round", order.round},
                   {"fragment", number},
                   {"epoch", order.epoch},
                   {"members", names}}));
  for (const Site& site : sites_) {
    const bool member =
        std::ranges::find(members, static_cast<std::size_t>(site.index)) != members.end();
    if (!site.in || member) continue;
    note({Note::Kind::excluded, site.name, order.round, number, order.epoch});
  }
  for (Site& site : sites_) site.late = site.in;
  for (const std::size_t index : members) {
    Site& site = sites_[index];
    site.late = false;
    site.ready_at.reset();
    for (auto& [part, leader] : site.leaders) {
      OuterExchange what{order.round, number, order.epoch, {}, key};
      for (std::size_t i = 0; i < members.size(); ++i) {
        const Site& other = sites_[members[i]];
        what.members.push_back({other.name, other.leaders.at(part).address, weights[i] / sum});
      }
      answer(site, leader, std::move(what));
    }
  }
  fragment.order = std::move(order);
}

}  // namespace sortie::launcher
