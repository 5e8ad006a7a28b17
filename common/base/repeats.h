// RepeatFilter: a log line that would be written again and again is written once per period.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace sortie {

/// Not thread-safe. Remembers at most kMostTexts texts; beyond that it forgets the oldest one,
/// whose next repetition passes.
class RepeatFilter {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostTexts = 16;

  explicit RepeatFilter(Clock::duration period) : period_(period) {}

  /// Returns what to log: `text`, with the number of its repetitions that were left out before.
  /// Returns nullopt if `text` has passed within the period.
  std::optional<std::string> pass(const std::string& text, Clock::time_point now) {
    const auto found = seen_.find(text);
    if (found != seen_.end() && now - found->second.passed < period_) {
      ++found->second.left_out;
      return std::nullopt;
    }
    const std::uint64_t left_out = found == seen_.end() ? 0 : found->second.left_out;
    if (found == seen_.end() && seen_.size() == kMostTexts)
      seen_.erase(std::ranges::min_element(seen_, {},
                                           [](const auto& entry) { return entry.second.passed; }));
    seen_[text] = {now, 0};
    if (left_out == 0) return text;
    return fmt::format("{} ({} more {} since the last such line)", text, left_out,
                       left_out == 1 ? "time" : "times");
  }

 private:
  struct Seen {
    Clock::time_point passed;
    std::uint64_t left_out = 0;
  };
  const Clock::duration period_;
  std::map<std::string, Seen> seen_;
};

}  // namespace sortie
