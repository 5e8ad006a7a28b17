#include "launcher/sites/round_times.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace sortie::launcher {
namespace {

using RoundTime = RoundTimes::Time;

/// Of two in the middle the later one.
RoundTime median_of(std::vector<RoundTime> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

void RoundTimes::note(Time spread, Time exchange, Time whole) {
  rounds_.push_back({spread, exchange, whole});
  if (rounds_.size() > kKept) rounds_.pop_front();
}

std::optional<RoundTime> RoundTimes::exchange() const {
  if (rounds_.empty()) return std::nullopt;
  std::vector<Time> all;
  for (const Round& round : rounds_) all.push_back(round.exchange);
  return median_of(std::move(all));
}

std::optional<RoundTime> RoundTimes::whole() const {
  if (rounds_.empty()) return std::nullopt;
  std::vector<Time> all;
  for (const Round& round : rounds_) all.push_back(round.whole);
  return median_of(std::move(all));
}

RoundTime RoundTimes::deadline() const {
  if (rounds_.empty()) return kLongest;
  std::vector<Time> spreads, deviations;
  for (const Round& round : rounds_) spreads.push_back(round.spread);
  const Time median = median_of(spreads);
  for (const Time spread : spreads) deviations.push_back(std::chrono::abs(spread - median));
  const Time learned = median + 4 * median_of(std::move(deviations));
  const Time least = std::max({kShortest, 2 * *exchange(), *whole() / 10});
  return std::min(std::max(learned, least), kLongest);
}

}  // namespace sortie::launcher
