// The progress of the ranks on this host: each rank's last report, and how long it has not changed
// by this runner's clock. Pure: the caller passes the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "common/wire/message.h"
#include "runner/progress/progress_line.h"

namespace sortie::runner {

class ProgressTable {
 public:
  using Clock = std::chrono::steady_clock;
  /// Own time is averaged over at least this long, and over at least one step.
  static constexpr std::chrono::seconds kOwnWindow{10};

  void take(std::uint32_t rank, const ProgressLine& line, Clock::time_point now);
  void rank_ended(std::uint32_t rank) { ranks_.erase(rank); }
  /// This process did not run for `gap` (stopped, or the machine was suspended). The ranks may not
  /// have run either, so the gap does not count for them.
  void skip(Clock::duration gap, Clock::time_point now);
  /// Contents of a heartbeat: every rank that has reported and has not ended. Restarts the interval
  /// over which the longest times are taken.
  std::vector<wire::RankProgress> report(Clock::time_point now);

 private:
  struct Rank {
    ProgressLine line;
    Clock::time_point changed{};  // when it last differed from the line before
    Clock::time_point heard{};
    Clock::duration longest{};
    training::Section longest_section = training::Section::start;
    // The window over which own time is averaged.
    Clock::time_point window_begin{};
    std::uint64_t window_step = 0, window_own_us = 0;
    std::uint32_t own_us = 0;  // per step, averaged over the last complete window
  };
  static void close_window(Rank& rank, Clock::time_point now);

  std::map<std::uint32_t, Rank> ranks_;
};

}  // namespace sortie::runner
