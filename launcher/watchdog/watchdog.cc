#include "launcher/watchdog/watchdog.h"

#include <algorithm>
#include <array>

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
using training::Section;

/// Reports of a host are old after this many heartbeats.
constexpr int kFreshBeats = 3;

Section section_of(const wire::RankProgress& told) {
  return static_cast<Section>(told.section);
}

/// Whether the duration of the section depends on more than the step.
bool needs_patience(Section section) {
  return section == Section::evaluate || section == Section::save || section == Section::step ||
         section == Section::done;
}

}  // namespace

Watchdog::Watchdog(const config::WatchdogConfig& config, milliseconds heartbeat,
                   std::vector<std::size_t> host_of)
    : config_(config),
      heartbeat_(heartbeat),
      host_of_(std::move(host_of)),
      ranks_(host_of_.size()),
      hosts_(host_of_.empty() ? 0 : std::ranges::max(host_of_) + 1),
      stragglers_(hosts_.size(), config.straggler_ratio, config.straggler_windows) {}

void Watchdog::rank_started(std::uint32_t number, Clock::time_point now) {
  Rank& rank = ranks_[number];
  rank.running = true;
  rank.started = now;
}

void Watchdog::rank_ended(std::uint32_t number) {
  ranks_[number].running = false;
}

void Watchdog::heard(std::size_t host, std::span<const wire::RankProgress> told,
                     Clock::time_point now) {
  hosts_[host].heard = now;
  for (const wire::RankProgress& news : told) {
    if (news.rank >= ranks_.size() || host_of_[news.rank] != host) continue;
    if (!training::section_of(news.section) || !training::section_of(news.longest_section))
      continue;
    Rank& rank = ranks_[news.rank];
    if (!rank.running) continue;
    // The section that has ended since the last report may belong to the step of that report.
    const bool was_exempt = is_exempt(rank);
    if (rank.first_step == 0) rank.first_step = news.step;
    rank.told = true;
    rank.last = news;
    const auto longest = static_cast<Section>(news.longest_section);
    if (news.longest_ms > 0 && longest != Section::start && !was_exempt)
      times_.add(longest, milliseconds(news.longest_ms));
  }
}

const wire::RankProgress* Watchdog::place(std::uint32_t rank) const {
  return ranks_[rank].running && ranks_[rank].told ? &ranks_[rank].last : nullptr;
}

bool Watchdog::is_exempt(const Rank& rank) const {
  return rank.first_step == 0 ||
         rank.last.step < rank.first_step + static_cast<std::uint64_t>(config_.exempt_steps);
}

milliseconds Watchdog::limit(Section section) const {
  if (section == Section::start) return milliseconds(0);
  if (config_.hang_timeout.count() > 0) return config_.hang_timeout;
  const milliseconds patient = kPatience * config_.hang_minimum;
  const milliseconds p99 = times_.p99(section);
  if (p99.count() == 0) return patient;
  return std::max(needs_patience(section) ? patient : config_.hang_minimum, kTimesP99 * p99);
}

bool Watchdog::news_are_fresh(Clock::time_point now) const {
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (ranks_[i].running && now - hosts_[host_of_[i]].heard > kFreshBeats * heartbeat_)
      return false;
  return true;
}

/// Returns the limit of a hanging rank; nullopt if no rank hangs.
std::optional<milliseconds> Watchdog::passed_limit(Clock::time_point now) const {
  // Computed once for all ranks, because there may be many.
  std::array<milliseconds, training::kSectionNames.size()> limits;
  for (std::size_t i = 0; i < limits.size(); ++i) limits[i] = limit(static_cast<Section>(i));
  const bool is_fixed = config_.hang_timeout.count() > 0;
  bool all_stand = true;  // every rank is beyond its limit
  milliseconds first{0};
  for (const Rank& rank : ranks_) {
    if (!rank.running) continue;
    if (!rank.told) {
      all_stand = false;
      continue;
    }
    milliseconds limit = limits[rank.last.section];
    if (limit.count() > 0 && !is_fixed && is_exempt(rank))
      limit = std::max(limit, kPatience * config_.hang_minimum);
    const bool stands = limit.count() > 0 && milliseconds(rank.last.standing_ms) >= limit;
    if (stands && !training::may_wait_for_others(section_of(rank.last))) return limit;
    all_stand = all_stand && stands;
    if (stands && first.count() == 0) first = limit;
  }
  if (!all_stand || first.count() == 0 || !news_are_fresh(now)) return std::nullopt;
  return first;
}

std::optional<Hang> Watchdog::late_start(Clock::time_point now) const {
  if (config_.start_timeout.count() == 0) return std::nullopt;
  Hang hang;
  for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    const bool starts = rank.running && rank.told && section_of(rank.last) == Section::start;
    if (starts && now - rank.started >= config_.start_timeout) hang.ranks.push_back(i);
  }
  if (hang.ranks.empty() || !news_are_fresh(now)) return std::nullopt;
  hang.behind = hang.ranks;
  hang.where = ranks_[hang.behind.front()].last;
  hang.limit = config_.start_timeout;
  hang.why = "it has not begun its first step";
  find_behind(hang);
  find_host(hang);
  return hang;
}

std::optional<Hang> Watchdog::look(Clock::time_point now) {
  if (last_look_ != Clock::time_point{} && now - last_look_ > kTick + kNotRunning)
    for (Rank& rank : ranks_) rank.started += now - last_look_ - kTick;
  last_look_ = now;
  if (!config_.hangs) return std::nullopt;
  if (const auto limit = passed_limit(now)) return describe(*limit);
  return late_start(now);
}

Hang Watchdog::describe(milliseconds limit) const {
  Hang hang;
  hang.limit = limit;
  for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (rank.running && rank.told && milliseconds(rank.last.standing_ms) >= limit / 2)
      hang.ranks.push_back(i);
  }
  hang.behind = hang.ranks;
  find_behind(hang);
  find_host(hang);
  return hang;
}

/// Narrows `behind` by the criteria in the order of their weight. A criterion that is the same for
/// all ranks is skipped.
void Watchdog::find_behind(Hang& hang) const {
  constexpr std::uint32_t kSilentMs = 3000;
  const auto told = [this](std::uint32_t rank) -> const wire::RankProgress& {
    return ranks_[rank].last;
  };
  const auto narrow = [&](auto matches, const char* why) {
    std::vector<std::uint32_t> found;
    std::ranges::copy_if(hang.behind, std::back_inserter(found),
                         [&](std::uint32_t rank) { return matches(told(rank)); });
    if (found.empty() || found.size() == hang.behind.size()) return false;
    hang.behind = std::move(found);
    hang.why = why;
    return true;
  };
  const auto lowest = [&](auto member) {
    return std::ranges::min(hang.behind, {},
                            [&](std::uint32_t rank) { return told(rank).*member; });
  };
  const auto least_sequence = told(lowest(&wire::RankProgress::sequence)).sequence;
  const auto least_step = told(lowest(&wire::RankProgress::step)).step;
  const bool found =
      narrow([](const auto& rank) { return rank.silent_ms >= kSilentMs; },
             "its process is silent: stopped, or blocked in the kernel") ||
      narrow([](const auto& rank) { return !training::may_wait_for_others(section_of(rank)); },
             "the others wait for it") ||
      narrow([&](const auto& rank) { return rank.sequence == least_sequence; },
             "it has begun the fewest collectives") ||
      narrow([&](const auto& rank) { return rank.step == least_step; }, "its step is the lowest");
  if (!found && hang.why.empty() && hang.ranks.size() > 1)
    hang.why =
        "no rank differs from the others: see their stacks, and the network between the hosts";
  hang.where = told(hang.behind.front());
}

void Watchdog::find_host(Hang& hang) const {
  const std::size_t host = host_of_[hang.behind.front()];
  const bool one =
      std::ranges::all_of(hang.behind, [&](std::uint32_t rank) { return host_of_[rank] == host; });
  if (one) hang.host = host;
}

std::vector<Straggler> Watchdog::take_stragglers(Clock::time_point now) {
  // A window contains at least one step of every rank, so that it has new data.
  if (window_begin_ == Clock::time_point{}) window_begin_ = now;
  if (now - window_begin_ < kWindow) return {};
  std::vector<std::uint32_t> own(hosts_.size());
  std::uint64_t step = 0;
  bool any = false;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].running || !ranks_[i].told) continue;
    const wire::RankProgress& last = ranks_[i].last;
    own[host_of_[i]] = std::max(own[host_of_[i]], last.own_us);
    step = any ? std::min(step, last.step) : last.step;
    any = true;
  }
  if (!any || step == window_step_) return {};
  window_begin_ = now;
  window_step_ = step;
  return stragglers_.window(own);
}

}  // namespace sortie::launcher
