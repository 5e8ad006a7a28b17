// OuterCoordinator: which sites join, and whose weights are the weights of the run.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

#include "launcher/sites/coordinator.h"
#include "launcher/sites/coordinator_lines.h"

namespace sortie::launcher {
using namespace sortie::training;

template <class Question>
bool OuterCoordinator::all_ask(const Site& site) const {
  return site.parts > 0 && static_cast<std::int64_t>(site.leaders.size()) == site.parts &&
         std::ranges::all_of(site.leaders, [](const auto& entry) {
           const auto& asked = entry.second.asked;
           return asked && std::holds_alternative<Question>(*asked);
         });
}
template bool OuterCoordinator::all_ask<OuterNext>(const Site&) const;
template bool OuterCoordinator::all_ask<OuterReady>(const Site&) const;

namespace {

const OuterJoin& join_of(const OuterQuestion& question) {
  return std::get<OuterJoin>(question);
}

}  // namespace

/// Why the model of this leader does not match that of the other sites; empty if it matches.
std::string OuterCoordinator::misfit(const Site& site, const OuterJoin& join) const {
  if (site.parts > 0 && site.parts != join.parts)
    return fmt::format("one leader of site {} says that there are {} parts, another one {}",
                       site.name, join.parts, site.parts);
  for (const Site& other : sites_) {
    if (other.name == site.name || other.parts == 0 || other.left) continue;
    if (other.parts != join.parts)
      return fmt::format(
          "site {} holds the model in {} parts, site {} in {}; give all sites the same tensor, "
          "pipeline and expert parallelism",
          site.name, join.parts, other.name, other.parts);
    const auto same = other.leaders.find(join.part);
    if (same != other.leaders.end() && same->second.elements != join.elements)
      return fmt::format(
          "part {} has {} elements at site {} and {} at site {}; all sites train "
          "one model with one config",
          join.part, join.elements, site.name, same->second.elements, other.name);
  }
  return "";
}

void OuterCoordinator::take_join(Site& site, std::uint32_t rank, const NumberedQuestion& question) {
  const OuterJoin& join = join_of(question.question);
  site.left_out.clear();
  if (site.in) {  // this part has lost its state, so the other parts must join again, too
    answer_all(site, OuterRefused{fmt::format("rank {} of site {} joins again; join again", rank,
                                              site.name)});
    const auto numbers = site.leaders;
    lose(site, "joins again");
    // Keep the numbers, so that late repeats of old questions are recognized.
    for (const auto& [part, old] : numbers)
      site.leaders[part] = {old.rank, old.address, old.elements, old.number, {}, old.answered};
    site.parts = static_cast<std::int64_t>(site.leaders.size());
  }
  if (const std::string why = misfit(site, join); !why.empty()) {
    step_.messages.push_back({site.name, rank, question.number, OuterRefused{why}});
    return;
  }
  std::erase_if(site.leaders, [&](const auto& entry) {
    return entry.second.rank == rank && entry.first != join.part;
  });
  site.parts = join.parts;
  site.leaders[join.part] = {rank, join.address, join.elements, question.number, question.question,
                             {}};
  // `done` covers only this attempt: site_up() resets it, because a new attempt reads a checkpoint.
  site.mixed = std::ranges::min(site.done) != std::ranges::max(site.done);
  if (!first_join_ && count_in() == 0) first_join_ = now_;
}

/// Begins the rounds if no site has the state of the run, at its start or because all sites were
/// lost. The run continues from the newest state that a site has. After the end of the training
/// there is nothing to continue.
void OuterCoordinator::begin_rounds() {
  if (count_in() > 0) return;
  std::vector<Site*> come;
  bool newest = false, waiting = false;
  for (Site& site : sites_) {
    if (site.left || site.failed) continue;
    if (!all_ask<OuterJoin>(site)) {
      waiting = true;
      continue;
    }
    come.push_back(&site);
    const bool has = !site.mixed && std::ranges::all_of(site.leaders, [&](const auto& entry) {
      return join_of(*entry.second.asked).round >= round();
    });
    newest = newest || (begun_ && has);
  }
  if (come.empty()) return;
  if (over_) {
    for (Site* site : come) answer_all(*site, OuterJoined{round(), {}, /*over=*/true});
    return;
  }
  if (waiting && !newest) {
    const Time until = first_join_.value_or(now_) + settings_.start_wait;
    if (now_ < until) return due(until);
    if (static_cast<std::int64_t>(come.size()) < wanted_sites()) return;
  }
  std::int64_t first = -1;
  for (const Site* site : come) first = std::max(first, round_at(*site));
  if (first >= 0) return begin_at(first, come);
  for (Site* site : come)
    answer_all(*site, OuterRefused{fmt::format(
                          "the parts or fragments of site {} are of different rounds, and no "
                          "other site has whole ones; start again from a checkpoint",
                          site->name)});
}

/// The round of the state that a site has, all of whose leaders ask to join; -1 if its parts or
/// fragments have different rounds, so that it has no consistent state.
std::int64_t OuterCoordinator::round_at(const Site& site) {
  const std::int64_t round = join_of(*site.leaders.begin()->second.asked).round;
  const bool same = std::ranges::all_of(
      site.leaders, [&](const auto& entry) { return join_of(*entry.second.asked).round == round; });
  return same && !site.mixed ? round : -1;
}

/// The hashes of the parts of such a site.
std::vector<std::uint64_t> OuterCoordinator::state_of(const Site& site) {
  std::vector<std::uint64_t> hashes;
  for (const auto& [part, leader] : site.leaders) hashes.push_back(join_of(*leader.asked).hash);
  return hashes;
}

/// Begins the rounds with the state of round `first`, the newest that one of the sites has.
void OuterCoordinator::begin_at(std::int64_t first, const std::vector<Site*>& come) {
  std::int64_t position = 0;
  std::vector<Site*> with, without;
  for (Site* site : come) (round_at(*site) == first ? with : without).push_back(site);
  for (const Site* site : with)
    for (const auto& [part, leader] : site->leaders)
      position = std::max(position, join_of(*leader.asked).position);
  // The state that most of them have; among equals that of the first site.
  std::map<std::vector<std::uint64_t>, int> votes;
  for (const Site* site : with) ++votes[state_of(*site)];
  const Site* model = with.front();
  for (const Site* site : with)
    if (votes[state_of(*site)] > votes[state_of(*model)]) model = site;
  const auto most = state_of(*model);

  const bool again = begun_ && first < round();
  begun_ = true;
  first_join_.reset();
  consumed_ = first == 0 || again ? position : std::max(consumed_, position);
  granted_ = consumed_;
  grants_.clear();
  for (Fragment& fragment : fragments_) fragment = Fragment{first, {}, 0, {}, {}};
  hash_round_ = first;
  hash_.clear();
  for (const auto& [part, leader] : model->leaders) hash_[part] = join_of(*leader.asked).hash;
  line(outer_line({{"do", "begin"}, {"round", first}, {"position", granted_}}));
  Note told{Note::Kind::begun, {}, first};
  for (const Site* site : come) told.members.push_back(site->name);
  told.text =
      again ? "all sites were lost; the newest checkpoints are older than the last round" : "";
  note(std::move(told));
  std::vector<const Site*> donors;
  std::vector<Site*> others;
  for (Site* site : with)
    if (state_of(*site) == most)
      donors.push_back(site);
    else
      others.push_back(site);
  keep_grants(donors, first + 1);
  for (Site* site : with)
    if (state_of(*site) == most) admit(*site, {}, /*same=*/true);
  for (Site* site : others) admit(*site, donors, false);
  for (Site* site : without) admit(*site, donors, false);
}

/// The work of the next round that the joining site was granted before it was stopped; 0 steps =
/// none, or its parts name different work.
OuterCoordinator::Work OuterCoordinator::work_of_join(const Site& site) const {
  const OuterJoin& first = join_of(*site.leaders.begin()->second.asked);
  const bool same = std::ranges::all_of(site.leaders, [&](const auto& entry) {
    const OuterJoin& join = join_of(*entry.second.asked);
    return join.work_steps == first.work_steps && join.first_sample == first.first_sample;
  });
  if (!same || plain(first.round + 1) || first.work_steps > settings_.outer.every) return {};
  return {first.work_steps, first.first_sample, true};
}

/// When the rounds begin: what the sites were granted in the round in which all of them were
/// stopped. It counts only if no sample would be used twice.
void OuterCoordinator::keep_grants(const std::vector<const Site*>& sites, std::int64_t round) {
  Grant grant{.since = Time{-1}, .work = {}};
  std::vector<Work> works;
  for (const Site* site : sites)
    if (const Work work = work_of_join(*site); work.steps > 0)
      works.push_back(grant.work[site->name] = work);
  std::ranges::sort(works, {}, &Work::first);
  std::int64_t end = consumed_;
  for (const Work& work : works) {
    if (work.first < end) return;
    end = work.first + work.steps * batch_of_site();
  }
  if (works.empty()) return;
  granted_ = end;
  grants_[round] = std::move(grant);
}

/// A site that was stopped in a round, and comes back with its state, gets the same work again.
bool OuterCoordinator::grant_again(const Site& site) {
  const auto grant = grants_.find(round() + 1);
  if (grant == grants_.end()) return false;
  const auto known = grant->second.work.find(site.name);
  const Work work = work_of_join(site);
  if (known == grant->second.work.end() || work.steps == 0 || work.steps != known->second.steps ||
      work.first != known->second.first)
    return false;
  known->second.said = false;
  return true;
}

/// Whether the joining site has exactly the known state of the current round.
bool OuterCoordinator::same_state(const Site& site) const {
  return !site.mixed && hash_round_ == round() &&
         std::ranges::all_of(site.leaders, [&](const auto& entry) {
           const OuterJoin& join = join_of(*entry.second.asked);
           const auto known = hash_.find(entry.first);
           return join.round == hash_round_ && known != hash_.end() && known->second == join.hash;
         });
}

/// Admits joining sites at a boundary between rounds, when all fragments have the same round.
void OuterCoordinator::admit_joiners() {
  if (!begun_ || count_in() == 0) return;
  const bool boundary = std::ranges::all_of(fragments_, [&](const Fragment& fragment) {
    return !fragment.order && fragment.committed == round();
  });
  if (!boundary) return;
  std::vector<const Site*> donors;
  for (const Site& site : sites_)
    if (has_newest(site)) donors.push_back(&site);
  // Sites that should copy weights have no donor left, or have copied already: make them join again
  // to report what they have.
  const bool waits = std::ranges::any_of(
      sites_, [&](const Site& site) { return !site.in && !site.left && all_ask<OuterJoin>(site); });
  const bool only_copies =
      std::ranges::none_of(sites_, [](const Site& site) { return site.in && !site.copying; });
  if (waits && only_copies)
    for (Site& site : sites_) {
      const bool asks = std::ranges::any_of(
          site.leaders, [](const auto& entry) { return entry.second.asked.has_value(); });
      if (!site.in || !asks) continue;
      answer_all(site, OuterRefused{"no site is known to have the weights of the run; join again"});
      lose(site, "is to join again");
    }
  for (Site& site : sites_) {
    if (site.in || site.left || !all_ask<OuterJoin>(site)) continue;
    const bool same = same_state(site);
    if (same || !donors.empty()) admit(site, donors, same);
  }
}

void OuterCoordinator::admit(Site& site, const std::vector<const Site*>& donors, bool same) {
  site.in = true;
  site.copying = !same;
  site.late = false;
  site.joined_at = now_;
  site.ready_at.reset();
  site.steps.clear();
  site.at = round();
  std::ranges::fill(site.done, round());
  OuterJoined said{.round = round()};
  // Rotate the donors, so that not all joiners copy from the same site.
  for (std::size_t i = 0; i < donors.size() && !same; ++i)
    said.donors.push_back(donors[(i + static_cast<std::size_t>(site.index)) % donors.size()]->name);
  nlohmann::ordered_json leaders = nlohmann::ordered_json::array();
  for (const auto& [part, leader] : site.leaders)
    leaders.push_back({{"part", part},
                       {"rank", leader.rank},
                       {"address", leader.address},
                       {"elements", leader.elements}});
  line(outer_line({{"do", "joined"},
                   {"site", site.name},
                   {"attempt", site.attempt},
                   {"round", round()},
                   {"leaders", leaders}}));
  if (same && grant_again(site)) write_grant(round() + 1);
  Note told{Note::Kind::joined, site.name, round()};
  told.members = said.donors;
  // All leaders of a site do the same steps, so do not add them up.
  for (const auto& [part, leader] : site.leaders)
    told.steps_in_vain = std::max(told.steps_in_vain, join_of(*leader.asked).steps_in_vain);
  site.steps_in_vain += told.steps_in_vain;
  answer_all(site, said);
  note(std::move(told));
}

}  // namespace sortie::launcher
