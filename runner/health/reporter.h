// Writes findings: one line per finding, at once. Repetitions are counted and reported a minute
// later. A flood of findings can neither fill the pipe nor block this process.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "common/health/finding.h"

namespace sortie::runner::health {

class Reporter {
 public:
  static constexpr double kRepeatSeconds = 60;
  static constexpr std::size_t kMostAMinute = 60;  // lines
  static constexpr std::size_t kMostKeys = 256;    // different findings that are remembered

  /// Writes to `fd` and makes it non-blocking. The caller keeps ownership.
  explicit Reporter(int fd);

  /// Writes or counts a finding. `now`: seconds on a monotonic clock.
  void say(const sortie::health::Finding& finding, double now);
  /// Writes the counted repetitions that are due, and the number of dropped findings.
  void tick(double now);
  /// Earliest time at which tick() has something to write; nullopt = not before the next say().
  std::optional<double> due() const;
  /// The reader is gone: nothing more can be written.
  bool closed() const { return closed_; }

 private:
  /// The bool separates a finding that has the driver's recovery action from the same one of the
  /// kernel log.
  using Key = std::tuple<sortie::health::Kind, int, bool, std::string>;
  struct Said {
    double at = 0;
    std::uint64_t more = 0;
    sortie::health::Finding last;
  };
  bool write(const sortie::health::Finding& finding, double now);
  void forget_old(double now);

  int fd_;
  std::map<Key, Said> said_;
  double minute_ = -1e9;  // start of the current minute
  std::size_t lines_ = 0;
  std::uint64_t dropped_ = 0;
  bool closed_ = false;
};

}  // namespace sortie::runner::health
