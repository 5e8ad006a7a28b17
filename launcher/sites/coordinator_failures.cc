// OuterCoordinator: exchanges that fail are repeated, without a site that is their cause, and not
// for ever.
#include <fmt/format.h>

#include <algorithm>

#include "common/base/exit_code.h"
#include "launcher/sites/coordinator.h"

namespace sortie::launcher {
using namespace sortie::training;

namespace {

constexpr OuterCoordinator::Time kFirstRetry{5'000}, kLongestRetry{60'000};

/// Pause before the next order of a fragment after `failures` failed orders in a row.
OuterCoordinator::Time pause_after(int failures, int at_once) {
  if (failures < at_once) return OuterCoordinator::Time{0};
  return std::min(kFirstRetry * (1 << std::min(failures - at_once, 4)), kLongestRetry);
}

/// Exchanges of a round that fail between the same two sites before the run ends. With the pauses,
/// and the time that links take to fail, these are about ten minutes, as for too few sites.
constexpr int kMostFailures = 12;

}  // namespace

/// Cancels an order because the exchange has failed at `site`.
void OuterCoordinator::fail_exchange(std::int64_t number, const Site& site, const OuterVote& vote) {
  Fragment& fragment = fragments_[static_cast<std::size_t>(number)];
  const Site* const other = find(vote.suspect);
  std::string suspect = vote.suspect;
  if (other) {
    Fragment::Link& link = fragment.links[std::minmax(site.index, other->index)];
    ++link.failures;
    link.last = fmt::format("site {}: {}", site.name, vote.reason);
    // Without the weights that the other one has, there is no round.
    if (site.copying && !other->copying) suspect = site.name;
  }
  call_off(number, fmt::format("site {}: {}", site.name, vote.reason), std::move(suspect));
}

void OuterCoordinator::call_off(std::int64_t number, std::string reason, std::string suspect) {
  Fragment& fragment = fragments_[static_cast<std::size_t>(number)];
  const Order order = *std::exchange(fragment.order, std::nullopt);
  Note told{Note::Kind::aborted, suspect, order.round, number, order.epoch};
  told.text = reason;
  note(std::move(told));
  ++fragment.failures;
  if (!suspect.empty()) ++fragment.suspects[suspect];
  fragment.retry_at = now_ + pause_after(fragment.failures, kOrdersAtOnce);
  for (const std::size_t index : order.members) {
    Site& site = sites_[index];
    site.late = false;
    for (auto& [part, leader] : site.leaders) {
      if (leader.asked && std::holds_alternative<OuterVote>(*leader.asked))
        answer(site, leader, OuterDecision{order.round, number, order.epoch, false, reason});
      else
        step_.messages.push_back({site.name, leader.rank, 0, OuterAbort{order.epoch, reason}});
    }
  }
  for (Site& site : sites_) site.late = false;
}

/// The site to leave out of the next order: after repeated failures the one named most often as the
/// cause, if the other ones that are ready can do the round. Empty = none.
std::string OuterCoordinator::to_leave_out(const Fragment& fragment,
                                           const std::vector<std::size_t>& ready,
                                           std::int64_t wanted) const {
  if (fragment.failures < kOrdersAtOnce || fragment.suspects.empty()) return "";
  const auto worst = std::ranges::max_element(fragment.suspects, {},
                                              [](const auto& entry) { return entry.second; });
  if (worst->second < 2) return "";
  std::int64_t others = 0;
  bool brings = false;  // a change of the weights
  const Site* last = nullptr;
  for (const std::size_t index : ready) {
    const Site& site = sites_[index];
    if (site.name == worst->first) continue;
    ++others;
    last = &site;
    brings = brings || std::ranges::none_of(site.leaders, [](const auto& entry) {
               return std::get<OuterReady>(*entry.second.asked).abstains;
             });
  }
  if (others < wanted || !brings) return "";
  // Of two sites that have never exchanged anything, either can be the cause, and neither is to
  // train alone.
  const bool alone = others == 1 && std::ranges::none_of(commits_, [&](const auto& entry) {
                       const std::set<std::string>& members = entry.second.members;
                       return members.contains(last->name) && members.contains(worst->first);
                     });
  return alone ? "" : worst->first;
}

/// Ends the run if its exchanges fail again and again between two of the members. Returns true if
/// it ends.
bool OuterCoordinator::end_unreachable(const Fragment& fragment,
                                       const std::vector<std::size_t>& members) {
  const auto is_member = [&](std::int64_t index) {
    return std::ranges::find(members, static_cast<std::size_t>(index)) != members.end();
  };
  for (const auto& [pair, link] : fragment.links) {
    if (link.failures < kMostFailures || !is_member(pair.first) || !is_member(pair.second))
      continue;
    const std::string& one = sites_[static_cast<std::size_t>(pair.first)].name;
    const std::string& other = sites_[static_cast<std::size_t>(pair.second)].name;
    ended_ = true;
    step_.end =
        End{kExitPreempted,
            fmt::format(
                "{}: round {}: {} exchanges have failed, the last one: {}; `sortie check` tests "
                "all links; start the run again to resume from its checkpoints",
                one == other ? "site " + one : fmt::format("sites {} and {}", one, other),
                fragment.committed + 1, link.failures, link.last)};
    return true;
  }
  return false;
}

}  // namespace sortie::launcher
