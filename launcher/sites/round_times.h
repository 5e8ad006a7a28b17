// RoundTimes: how long rounds and their exchanges took, and how long to wait for sites that are
// late. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>

namespace sortie::launcher {

class RoundTimes {
 public:
  using Time = std::chrono::milliseconds;
  static constexpr std::size_t kKept = 8;   // rounds
  static constexpr Time kLongest{600'000};  // the wait while nothing is known, and at most
  static constexpr Time kShortest{2'000};

  /// A round was committed: how long after the first site the last one was ready, how long the
  /// exchange took, and how long all of it since the work was granted.
  void note(Time spread, Time exchange, Time whole);

  /// How long after the first site others are waited for: the median of the spreads and four times
  /// their median absolute deviation, at least two exchanges, a tenth of a round and kShortest, at
  /// most kLongest.
  Time deadline() const;
  /// Median; none before the first round.
  std::optional<Time> exchange() const;
  std::optional<Time> whole() const;

 private:
  struct Round {
    Time spread, exchange, whole;
  };
  std::deque<Round> rounds_;
};

}  // namespace sortie::launcher
