// Durations of rounds, exchanges and steps, and the deadline for late sites. Pure.
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
  static constexpr Time kLongest{600'000};  // maximum wait, and the wait without history
  static constexpr Time kShortest{2'000};

  /// Records a committed round. `spread`: from the first ready site to the last. `exchange`:
  /// duration of the exchange. `whole`: duration of the round since its work was granted.
  void note(Time spread, Time exchange, Time whole);

  /// Time to wait for the other sites after the first of `sites` is ready: the median of the
  /// spreads plus four times their median absolute deviation. At least two exchanges, the fraction
  /// worth_waiting() of a round, and kShortest; at most kLongest.
  Time deadline(std::size_t sites) const;
  /// Fraction of a round that is worth waiting. Waiting for the fraction w costs each other site w
  /// rounds, once, because the late site is then excluded. Excluding it costs the late site two
  /// rounds: the one it worked on and the one in which it copies the weights. At most 1.
  static double worth_waiting(std::size_t sites);
  /// Medians; nullopt before the first round.
  std::optional<Time> exchange() const;
  std::optional<Time> whole() const;

 private:
  struct Round {
    Time spread, exchange, whole;
  };
  std::deque<Round> rounds_;
};

/// Duration of a step at a site: the median of its last rounds, because a single round may be an
/// outlier.
class StepTimes {
 public:
  static constexpr std::size_t kKept = 5;  // rounds

  void note(double seconds);
  void clear() { rounds_.clear(); }
  /// Median in seconds; 0 = unknown.
  double seconds() const;

 private:
  std::deque<double> rounds_;
};

}  // namespace sortie::launcher
