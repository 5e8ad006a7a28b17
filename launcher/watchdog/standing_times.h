// Statistics of the times between two signs of progress in normal operation, per section. The
// limits for hangs are derived from them.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "common/training/progress.h"

namespace sortie::launcher {

/// Histogram of times from 1 ms to a day, with bucket bounds that grow by 10 %. Counts all times in
/// constant memory.
class TimeHistogram {
 public:
  void add(std::chrono::milliseconds time);
  std::uint64_t count() const { return count_; }
  /// 99th percentile, rounded up to the upper bound of its bucket.
  std::chrono::milliseconds p99() const;

 private:
  static constexpr std::size_t kBuckets = 193;
  std::array<std::uint32_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

class StandingTimes {
 public:
  /// Minimum number of times for a percentile.
  static constexpr std::uint64_t kEnough = 8;

  void add(training::Section section, std::chrono::milliseconds time);
  /// Returns the 99th percentile of the section; that of all sections if the section has fewer than
  /// kEnough times; zero if there are fewer than kEnough times in total.
  std::chrono::milliseconds p99(training::Section section) const;

 private:
  std::array<TimeHistogram, training::kSectionNames.size()> sections_{};
  TimeHistogram all_;
};

}  // namespace sortie::launcher
