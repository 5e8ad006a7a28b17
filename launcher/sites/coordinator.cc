#include "launcher/sites/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/exit_code.h"
#include "launcher/sites/coordinator_lines.h"

namespace sortie::launcher {
using namespace sortie::training;

namespace {

/// Interval of repeated refusals: a broken link to the site may be the reason why it was excluded.
constexpr OuterCoordinator::Time kTellSiteAgain{5'000};

}  // namespace

OuterCoordinator::OuterCoordinator(Settings settings, NewKey new_key)
    : settings_(std::move(settings)), new_key_(std::move(new_key)) {
  fragments_.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, settings_.outer.fragments)));
  for (const std::string& name : settings_.sites) {
    Site& site = sites_.emplace_back();
    site.name = name;
    site.index = static_cast<std::int64_t>(sites_.size()) - 1;
    site.done.resize(fragments_.size());
  }
}

std::int64_t OuterCoordinator::round() const {
  return std::ranges::min(fragments_, {}, &Fragment::committed).committed;
}

OuterCoordinator::Site* OuterCoordinator::find(const std::string& name) {
  const auto it = std::ranges::find(sites_, name, &Site::name);
  return it == sites_.end() ? nullptr : &*it;
}

std::pair<OuterCoordinator::Site*, OuterCoordinator::Leader*> OuterCoordinator::leader_of(
    const std::string& name, std::uint32_t rank) {
  Site* const site = find(name);
  if (!site) return {nullptr, nullptr};
  for (auto& [part, leader] : site->leaders)
    if (leader.rank == rank) return {site, &leader};
  return {site, nullptr};
}

void OuterCoordinator::answer(Site& site, Leader& leader, OuterAnswer what) {
  leader.asked.reset();
  step_.messages.push_back({site.name, leader.rank, leader.number, what});
  leader.answered = std::move(what);
}

void OuterCoordinator::answer_all(Site& site, const OuterAnswer& what) {
  for (auto& [part, leader] : site.leaders)
    if (leader.asked) answer(site, leader, what);
}

/// Removes the site's leaders without answering their questions, and cancels exchanges with it.
void OuterCoordinator::lose(Site& site, const std::string& why) {
  const std::size_t index = static_cast<std::size_t>(site.index);
  site.in = site.copying = site.late = false;
  site.left_out.clear();
  site.parts = 0;
  site.leaders.clear();
  site.ready_at.reset();
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    const auto& order = fragments_[i].order;
    if (order && std::ranges::find(order->members, index) != order->members.end())
      call_off(static_cast<std::int64_t>(i), fmt::format("site {} {}", site.name, why), site.name);
  }
}

void OuterCoordinator::leave(Site& site, const std::string& why) {
  lose(site, why);
  site.left = true;
  line(outer_line({{"do", "left"}, {"site", site.name}, {"over", over_}}));
}

/// Whether the site has the weights of round().
bool OuterCoordinator::has_newest(const Site& site) const {
  return begun_ && site.in && !site.copying && std::ranges::min(site.done) == round();
}

void OuterCoordinator::due(Time when) {
  wake_at_ = std::min(wake_at_.value_or(when), when);
}

/// Minimum number of sites to continue. Sites that have left in order do not count as missing.
std::int64_t OuterCoordinator::wanted_sites() const {
  const auto there = std::ranges::count(sites_, false, &Site::left);
  return std::max<std::int64_t>(1, std::min<std::int64_t>(settings_.outer.min_sites, there));
}

std::int64_t OuterCoordinator::count_in() const {
  return std::ranges::count(sites_, true, &Site::in);
}

/// Handles too few sites: the others wait for a while, then the run ends so that it can be resumed.
/// If no site is left at all, the exit codes of the sites count.
void OuterCoordinator::watch_pause() {
  const auto possible =
      std::ranges::count_if(sites_, [](const Site& site) { return !site.failed && !site.left; });
  if (possible == 0) {
    paused_.reset();
    return;
  }
  const std::int64_t wanted = wanted_sites();
  if (possible < wanted) {
    ended_ = true;
    step_.end = End{kExitPreempted,
                    fmt::format("outer.min_sites: {} site{} left, and {} needed; start the run "
                                "again to resume from its checkpoints",
                                possible, possible == 1 ? " is" : "s are", wanted)};
    return;
  }
  if (!begun_ || count_in() >= wanted) {
    if (paused_) note({Note::Kind::resumed, {}, round()});
    paused_.reset();
    return;
  }
  if (!paused_) {
    paused_ = now_;
    Note told{Note::Kind::paused, {}, round()};
    told.seconds = std::chrono::duration<double>(settings_.rejoin).count();
    told.text = fmt::format("{} of at least {} sites are connected", count_in(), wanted);
    note(std::move(told));
  }
  if (now_ < *paused_ + settings_.rejoin) return due(*paused_ + settings_.rejoin);
  ended_ = true;
  step_.end =
      End{kExitPreempted,
          fmt::format("outer.min_sites: only {} of at least {} sites were there for {:.0f} "
                      "s; start the run again to resume from its checkpoints",
                      count_in(), wanted, std::chrono::duration<double>(settings_.rejoin).count())};
}

/// Notifies the leaders of excluded sites that a round was committed without them. Otherwise they
/// would continue to train until their next question.
void OuterCoordinator::tell_left_out() {
  for (Site& site : sites_) {
    const bool some_work = std::ranges::any_of(
        site.leaders, [](const auto& entry) { return !entry.second.asked.has_value(); });
    if (site.left_out.empty() || site.in || site.left || !site.up || !some_work) continue;
    if (!site.told_at || now_ >= *site.told_at + kTellSiteAgain) {
      site.told_at = now_;
      for (auto& [part, leader] : site.leaders)
        if (!leader.asked) answer(site, leader, OuterRefused{site.left_out});
    }
    due(*site.told_at + kTellSiteAgain);
  }
}

/// Takes all actions that are possible now, after any event.
OuterCoordinator::Step OuterCoordinator::settle(Time now) {
  now_ = std::max(now_, now);
  wake_at_.reset();
  if (!ended_) {
    judge_votes();
    begin_rounds();
    admit_joiners();
    grant_work();
    order_exchanges();
    tell_left_out();
    watch_pause();
  }
  return std::exchange(step_, Step());
}

/// Cancels an order if one of its members asks for it: the member did not receive it before an
/// earlier supervisor died.
void OuterCoordinator::call_off_unheard(const Site& site, const OuterReady& ready) {
  if (ready.fragment < 0 || ready.fragment >= static_cast<std::int64_t>(fragments_.size())) return;
  const auto& order = fragments_[static_cast<std::size_t>(ready.fragment)].order;
  if (order && order->round == ready.round &&
      std::ranges::find(order->members, static_cast<std::size_t>(site.index)) !=
          order->members.end())
    call_off(ready.fragment, "another supervisor has the run", "");
}

OuterCoordinator::Step OuterCoordinator::site_up(Time now, const std::string& name,
                                                 std::uint32_t attempt) {
  now_ = std::max(now_, now);
  if (Site* const site = find(name)) {
    // An attempt that an earlier supervisor knew continues.
    if (site->attempt != attempt) {
      if (!site->leaders.empty()) lose(*site, "has started again");
      std::ranges::fill(site->done, 0);
      for (Fragment& fragment : fragments_)
        std::erase_if(fragment.links, [&](const auto& entry) {
          return entry.first.first == site->index || entry.first.second == site->index;
        });
    }
    site->attempt = attempt;
    site->up = true;
    site->failed = site->left = site->removed = false;
  }
  return settle(now);
}

OuterCoordinator::Step OuterCoordinator::site_down(Time now, const std::string& name,
                                                   bool for_good) {
  now_ = std::max(now_, now);
  if (Site* const site = find(name)) {
    lose(*site, "is gone");
    site->up = false;
    site->failed = for_good && !site->left;
  }
  return settle(now);
}

OuterCoordinator::Step OuterCoordinator::add_site(Time now, const std::string& name) {
  if (Site* const known = find(name)) {
    known->failed = known->left = known->removed = false;
  } else {
    Site& site = sites_.emplace_back();
    site.name = name;
    site.index = static_cast<std::int64_t>(sites_.size()) - 1;
    site.done.resize(fragments_.size());
  }
  return settle(now);
}

OuterCoordinator::Step OuterCoordinator::remove_site(Time now, const std::string& name) {
  now_ = std::max(now_, now);
  if (Site* const site = find(name)) {
    leave(*site, "was removed");
    site->removed = true;
  }
  return settle(now);
}

OuterCoordinator::Step OuterCoordinator::stop(Time now) {
  stops_ = true;
  return settle(now);
}

OuterCoordinator::Step OuterCoordinator::tick(Time now) {
  return settle(now);
}

OuterCoordinator::Step OuterCoordinator::ask(Time now, const std::string& name, std::uint32_t rank,
                                             const NumberedQuestion& question) {
  now_ = std::max(now_, now);
  auto [site, leader] = leader_of(name, rank);
  if (!site || site->removed || ended_) return settle(now);
  if (leader && question.number <= leader->number) {  // repeated or outdated
    if (question.number == leader->number && leader->answered && !leader->asked)
      step_.messages.push_back({site->name, rank, question.number, *leader->answered});
    return settle(now);
  }
  if (site->left) {
    step_.messages.push_back({site->name, rank, question.number,
                              OuterRefused{fmt::format("site {} has left the run", site->name)}});
    return settle(now);
  }
  if (std::holds_alternative<OuterJoin>(question.question)) {
    take_join(*site, rank, question);
    return settle(now);
  }
  if (!leader) {
    step_.messages.push_back(
        {site->name, rank, question.number,
         OuterRefused{
             fmt::format("rank {} of site {} has not joined; join first", rank, site->name)}});
    return settle(now);
  }
  leader->number = question.number;
  leader->asked = question.question;
  leader->answered.reset();
  if (std::holds_alternative<OuterLeave>(question.question)) {
    leader->asked.reset();
    over_ = over_ || has_newest(*site);
    leave(*site, "has left");
    return settle(now);
  }
  if (!site->in) {
    answer(*site, *leader,
           OuterRefused{fmt::format("site {} is no member at present; join again", site->name)});
  } else if (const auto* vote = std::get_if<OuterVote>(&question.question)) {
    take_vote(*site, *leader, *vote);
  } else if (const auto* ready = std::get_if<OuterReady>(&question.question)) {
    call_off_unheard(*site, *ready);
    check_ready(*site);
  }
  return settle(now);
}

std::vector<OuterCoordinator::SiteState> OuterCoordinator::sites() const {
  std::vector<SiteState> out;
  for (const Site& site : sites_) {
    const bool asks = !site.leaders.empty();
    const char* const state = site.left                             ? "left"
                              : site.failed                         ? "failed"
                              : !site.up                            ? "down"
                              : site.copying                        ? "copying"
                              : site.late || !site.left_out.empty() ? "late"
                              : site.in                             ? "in"
                              : asks                                ? "joining"
                                                                    : "coming";
    out.push_back(
        {site.name, state, std::ranges::min(site.done), site.steps.seconds(), site.steps_in_vain});
  }
  return out;
}

std::string_view outer_note_name(OuterCoordinator::Note::Kind kind) {
  using enum OuterCoordinator::Note::Kind;
  switch (kind) {
    case begun:
      return "begun";
    case joined:
      return "joined";
    case committed:
      return "committed";
    case aborted:
      return "aborted";
    case excluded:
      return "excluded";
    case paused:
      return "paused";
    case resumed:
      return "resumed";
    case differs:
      return "differs";
  }
  return "";
}

}  // namespace sortie::launcher
