#include "runner/progress/progress_table.h"

#include <algorithm>
#include <limits>

namespace sortie::runner {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();

std::uint32_t milliseconds_of(ProgressTable::Clock::duration time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(ms, 0, static_cast<std::int64_t>(kMost)));
}

}  // namespace

void ProgressTable::take(std::uint32_t number, const ProgressLine& line, Clock::time_point now) {
  const auto [entry, is_new] = ranks_.try_emplace(number);
  Rank& rank = entry->second;
  rank.heard = now;
  // A change of own time alone is no progress, because it grows with the clock.
  ProgressLine same = line;
  same.own_us = rank.line.own_us;
  if (is_new || same != rank.line) {
    const Clock::duration stood = is_new ? Clock::duration::zero() : now - rank.changed;
    if (stood > rank.longest) {
      rank.longest = stood;
      rank.longest_section = rank.line.section;
    }
    rank.changed = now;
  }
  const bool begins_again = is_new || line.step < rank.line.step || line.own_us < rank.line.own_us;
  rank.line = line;
  if (begins_again) {
    rank.window_begin = now;
    rank.window_step = line.step;
    rank.window_own_us = line.own_us;
  }
  close_window(rank, now);
}

void ProgressTable::close_window(Rank& rank, Clock::time_point now) {
  if (now - rank.window_begin < kOwnWindow || rank.line.step <= rank.window_step) return;
  const std::uint64_t steps = rank.line.step - rank.window_step;
  const std::uint64_t own = rank.line.own_us - rank.window_own_us;
  rank.own_us = static_cast<std::uint32_t>(std::min(own / steps, kMost));
  rank.window_begin = now;
  rank.window_step = rank.line.step;
  rank.window_own_us = rank.line.own_us;
}

void ProgressTable::skip(Clock::duration gap, Clock::time_point now) {
  for (auto& [number, rank] : ranks_)
    for (Clock::time_point* time : {&rank.changed, &rank.heard, &rank.window_begin})
      *time = std::min(*time + gap, now);
}

std::vector<wire::RankProgress> ProgressTable::report(Clock::time_point now) {
  std::vector<wire::RankProgress> all;
  all.reserve(ranks_.size());
  for (auto& [number, rank] : ranks_) {
    wire::RankProgress told;
    told.rank = number;
    told.step = rank.line.step;
    told.section = static_cast<std::uint8_t>(rank.line.section);
    told.sequence = rank.line.sequence;
    told.standing_ms = milliseconds_of(now - rank.changed);
    told.silent_ms = milliseconds_of(now - rank.heard);
    told.own_us = rank.own_us;
    told.longest_ms = milliseconds_of(rank.longest);
    told.longest_section = static_cast<std::uint8_t>(rank.longest_section);
    rank.longest = {};
    all.push_back(told);
  }
  return all;
}

}  // namespace sortie::runner
