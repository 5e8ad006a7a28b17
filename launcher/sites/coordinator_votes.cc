// OuterCoordinator: evaluates the votes on an exchange, and commits or cancels it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/sites/coordinator.h"
#include "launcher/sites/coordinator_lines.h"

namespace sortie::launcher {
using namespace sortie::training;

namespace {

constexpr std::size_t kKeptCommits = 64;
/// Time for the other votes after the first: when one site is done, the others only wait for data
/// in flight.
constexpr OuterCoordinator::Time kLeastVoteWait{30'000};

}  // namespace

void OuterCoordinator::take_vote(Site& site, Leader& leader, const OuterVote& vote) {
  const auto index = static_cast<std::size_t>(site.index);
  const bool known =
      vote.fragment >= 0 && vote.fragment < static_cast<std::int64_t>(fragments_.size());
  Fragment* const fragment = known ? &fragments_[static_cast<std::size_t>(vote.fragment)] : nullptr;
  if (fragment && fragment->order && fragment->order->epoch == vote.epoch &&
      fragment->order->round == vote.round &&
      std::ranges::find(fragment->order->members, index) != fragment->order->members.end()) {
    const auto part = std::ranges::find_if(
        site.leaders, [&](const auto& entry) { return entry.second.rank == leader.rank; });
    fragment->order->votes[index][part->first] = vote;
    if (!fragment->order->first_vote) fragment->order->first_vote = now_;
    return;  // the answer follows when all have voted
  }
  const auto done = commits_.find(vote.epoch);
  const bool counts = done != commits_.end() && done->second.round == vote.round &&
                      done->second.fragment == vote.fragment &&
                      done->second.members.contains(site.name);
  answer(site, leader,
         OuterDecision{vote.round, vote.fragment, vote.epoch, counts,
                       counts ? "" : fmt::format("epoch {} was called off", vote.epoch)});
}

void OuterCoordinator::judge_votes() {
  for (std::size_t i = 0; i < fragments_.size(); ++i)
    if (fragments_[i].order) judge(static_cast<std::int64_t>(i));
}

/// Commits or cancels the order if that is decided. Returns true if the order has ended.
bool OuterCoordinator::judge(std::int64_t number) {
  const Order& order = *fragments_[static_cast<std::size_t>(number)].order;
  std::size_t complete = 0;
  std::string silent;
  for (const std::size_t index : order.members) {
    const auto votes = order.votes.find(index);
    const Site& site = sites_[index];
    if (votes != order.votes.end())
      for (const auto& [part, vote] : votes->second)
        if (!vote.done) {
          fail_exchange(number, site, vote);
          return true;
        }
    if (votes != order.votes.end() && votes->second.size() == site.leaders.size())
      ++complete;
    else
      silent = site.name;
  }
  if (complete < order.members.size()) {
    if (!order.first_vote) return false;
    const Time limit =
        *order.first_vote + std::max(kLeastVoteWait, 4 * times_.exchange().value_or(Time{0}));
    if (now_ < limit) {
      due(limit);
      return false;
    }
    call_off(number, fmt::format("site {} does not say how it went", silent), silent);
    return true;
  }
  // The result that most sites have, over all parts.
  const auto hashes_of = [&](std::size_t index) {
    std::vector<std::uint64_t> out;
    for (const auto& [part, vote] : order.votes.at(index)) out.push_back(vote.hash);
    return out;
  };
  std::map<std::vector<std::uint64_t>, std::set<std::size_t>> groups;
  for (const std::size_t index : order.members) groups[hashes_of(index)].insert(index);
  const auto largest =
      std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
  if (groups.size() > 1) {
    std::vector<std::string> others;
    for (const std::size_t index : order.members)
      if (!largest->second.contains(index)) others.push_back(sites_[index].name);
    const bool most = 2 * largest->second.size() > order.members.size() &&
                      static_cast<std::int64_t>(largest->second.size()) >= wanted_sites();
    Note told{Note::Kind::differs, others.size() == 1 ? others.front() : "",
              order.round,         number,
              order.epoch,         others};
    told.text = most ? "their mean is not that of most sites" : "too few sites agree on the mean";
    note(std::move(told));
    if (!most) {
      call_off(number,
               fmt::format("sites have computed different means; different from the first: {}",
                           fmt::join(others, ", ")),
               "");
      return true;
    }
  }
  commit(number, largest->second, largest->first.front());
  return true;
}

void OuterCoordinator::commit(std::int64_t number, const std::set<std::size_t>& agreed,
                              std::uint64_t hash) {
  Fragment& fragment = fragments_[static_cast<std::size_t>(number)];
  const Order order = *std::exchange(fragment.order, std::nullopt);
  Commit what{order.round, number, {}};
  for (const std::size_t index : agreed) what.members.insert(sites_[index].name);
  line(outer_line({{"do", "commit"},
                   {"round", order.round},
                   {"fragment", number},
                   {"epoch", order.epoch},
                   {"hash", fmt::format("{:016x}", hash)},
                   {"position", granted_},
                   {"members", what.members}}));
  Note told{Note::Kind::committed, {}, order.round, number, order.epoch};
  told.members.assign(what.members.begin(), what.members.end());
  const Time took = order.since.count() < 0 ? Time{0} : now_ - order.since;
  told.seconds = std::chrono::duration<double>(took).count();
  told.waited = std::chrono::duration<double>(order.waited).count();
  note(std::move(told));
  commits_[order.epoch] = std::move(what);
  while (commits_.size() > kKeptCommits) commits_.erase(commits_.begin());
  const auto grant = grants_.find(order.round);
  if (order.since.count() >= 0 && grant != grants_.end() && grant->second.since.count() >= 0)
    times_.note(order.waited, took, now_ - grant->second.since);
  // Times of plain steps say nothing about rounds of many steps.
  if (plain(order.round) && !plain(order.round + 1)) times_ = {};
  fragment = Fragment{order.round, {}, 0, {}, {}};
  if (round() == order.round) consumed_ = granted_;
  for (Site& site : sites_) {
    if (!site.in) continue;
    const auto index = static_cast<std::size_t>(site.index);
    const bool has = agreed.contains(index);
    if (has) {
      site.done[static_cast<std::size_t>(number)] = order.round;
      site.copying = site.late = false;
    }
    const bool all_hear = std::ranges::all_of(
        site.leaders, [](const auto& entry) { return entry.second.asked.has_value(); });
    for (auto& [part, leader] : site.leaders) {
      if (!leader.asked || !std::holds_alternative<OuterVote>(*leader.asked)) continue;
      answer(site, leader,
             OuterDecision{order.round, number, order.epoch, has,
                           has ? "" : "its mean is not that of most sites; join again"});
    }
    if (has) continue;
    site.left_out = left_out_text(order.round, site.name);
    site.told_at = all_hear ? std::optional(now_) : std::nullopt;
    answer_all(site, OuterRefused{site.left_out});
    site.in = site.copying = site.late = false;
    site.ready_at.reset();
  }
}

}  // namespace sortie::launcher
