// How long rounds, their exchanges and steps took, and how long to wait for sites that are late.
// Pure.
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

  /// How long after the first of `sites` the others are waited for: the median of the spreads and
  /// four times their median absolute deviation, at least two exchanges, the part of a round that
  /// worth_waiting() says and kShortest, at most kLongest.
  Time deadline(std::size_t sites) const;
  /// Waiting for a part w of a round costs w of each of the other sites, once, for then the late
  /// one is out. To be left out costs this one two rounds: the one that it worked on and the one in
  /// which it copies the weights. At most a round.
  static double worth_waiting(std::size_t sites);
  /// Median; none before the first round.
  std::optional<Time> exchange() const;
  std::optional<Time> whole() const;

 private:
  struct Round {
    Time spread, exchange, whole;
  };
  std::deque<Round> rounds_;
};

/// How long a step takes at a site: the median of its last rounds, because one alone says more of
/// the moment than of the site.
class StepTimes {
 public:
  static constexpr std::size_t kKept = 5;  // rounds

  void note(double seconds);
  void clear() { rounds_.clear(); }
  /// 0: not known.
  double seconds() const;

 private:
  std::deque<double> rounds_;
};

}  // namespace sortie::launcher
