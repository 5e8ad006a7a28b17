// How long ranks stand between two signs of progress while all is well, in each section: what the
// limits of a hang are learned from.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "common/training/progress.h"

namespace sortie::launcher {

/// Times from 1 ms to a day in buckets that are a tenth apart: no time is forgotten, and the memory
/// is fixed.
class TimeHistogram {
 public:
  void add(std::chrono::milliseconds time);
  std::uint64_t count() const { return count_; }
  /// A time that 99 of 100 do not pass: the upper end of its bucket, and so never too low.
  std::chrono::milliseconds p99() const;

 private:
  static constexpr std::size_t kBuckets = 193;
  std::array<std::uint32_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

class StandingTimes {
 public:
  /// Fewer than that say nothing about the hundredth.
  static constexpr std::uint64_t kEnough = 8;

  void add(training::Section section, std::chrono::milliseconds time);
  /// The 99th percentile of the section; of all sections where that one is not known well enough;
  /// zero where neither is.
  std::chrono::milliseconds p99(training::Section section) const;

 private:
  std::array<TimeHistogram, training::kSectionNames.size()> sections_{};
  TimeHistogram all_;
};

}  // namespace sortie::launcher
