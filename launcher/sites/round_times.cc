#include "launcher/sites/round_times.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace sortie::launcher {
namespace {

using RoundTime = RoundTimes::Time;

/// The upper median for an even number of values.
template <class Value>
Value median_of(std::vector<Value> values) {
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

double RoundTimes::worth_waiting(std::size_t sites) {
  return std::min(1.0, 2.0 / static_cast<double>(std::max<std::size_t>(sites, 2) - 1));
}

RoundTime RoundTimes::deadline(std::size_t sites) const {
  if (rounds_.empty()) return kLongest;
  std::vector<Time> spreads, deviations;
  for (const Round& round : rounds_) spreads.push_back(round.spread);
  const Time median = median_of(spreads);
  for (const Time spread : spreads) deviations.push_back(std::chrono::abs(spread - median));
  const Time learned = median + 4 * median_of(std::move(deviations));
  const auto part = std::chrono::duration_cast<Time>(*whole() * worth_waiting(sites));
  const Time least = std::max({kShortest, 2 * *exchange(), part});
  return std::min(std::max(learned, least), kLongest);
}

void StepTimes::note(double seconds) {
  rounds_.push_back(seconds);
  if (rounds_.size() > kKept) rounds_.pop_front();
}

double StepTimes::seconds() const {
  return rounds_.empty() ? 0.0 : median_of(std::vector(rounds_.begin(), rounds_.end()));
}

}  // namespace sortie::launcher
