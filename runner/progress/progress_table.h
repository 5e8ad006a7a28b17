// Where the ranks of this host are: the last thing that each has told, and for how long nothing of
// it has changed, by this runner's clock. Pure but for the time that it is given.
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
  /// Own time is a mean over so long, and over at least one step.
  static constexpr std::chrono::seconds kOwnWindow{10};

  void take(std::uint32_t rank, const ProgressLine& line, Clock::time_point now);
  void rank_ended(std::uint32_t rank) { ranks_.erase(rank); }
  /// This process itself did not run for `gap` (stopped, or the machine asleep): neither have its
  /// ranks, perhaps, and their time does not count.
  void skip(Clock::duration gap, Clock::time_point now);
  /// For a heartbeat: every rank that has told anything and has not ended. Begins a new interval
  /// for the longest times.
  std::vector<wire::RankProgress> report(Clock::time_point now);

 private:
  struct Rank {
    ProgressLine line;
    Clock::time_point changed{};  // when it last was another line
    Clock::time_point heard{};
    Clock::duration longest{};
    training::Section longest_section = training::Section::start;
    // The window of own time.
    Clock::time_point window_begin{};
    std::uint64_t window_step = 0, window_own_us = 0;
    std::uint32_t own_us = 0;  // per step, of the last whole window
  };
  static void close_window(Rank& rank, Clock::time_point now);

  std::map<std::uint32_t, Rank> ranks_;
};

}  // namespace sortie::runner
