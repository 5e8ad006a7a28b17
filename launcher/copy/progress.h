// ProgressLine: how far something that takes longer than a second is, how fast it goes and how long
// it will take. On a terminal one line that is rewritten, elsewhere a plain line after two seconds
// and then every ten; to stderr, and nothing with --quiet.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace sortie::launcher {

/// "256.0 MiB", "1.5 GiB", "812 B".
std::string byte_count(std::uint64_t bytes);

/// Bytes per second over the last ten seconds; pauses count.
class TransferRate {
 public:
  using Clock = std::chrono::steady_clock;
  /// `done`: so far in all. One that shrinks begins anew.
  void add(Clock::time_point now, std::uint64_t done);
  /// 0 until there is something to tell it from.
  double per_second() const;

 private:
  std::deque<std::pair<Clock::time_point, std::uint64_t>> seen_;
};

/// "push to 4 hosts: 128.0 MiB of 512.0 MiB, 25 %, 12.3 MiB/s, ETA 31s". `total` 0 = not known.
/// With a unit, bytes are meant no more: "plan: 30 of 244 layouts, 12 %, ETA 20s".
std::string progress_text(const std::string& what, std::uint64_t done, std::uint64_t total,
                          double per_second, const std::string& unit = "");

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Called as often as one likes. Another `what` is another phase, with a rate of its own.
  void show(const std::string& what, std::uint64_t done, std::uint64_t total,
            const std::string& unit = "");
  /// Before anything else is printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_, quiet_;
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point shown_ = begun_;
  std::string phase_;
  TransferRate rate_;
  bool visible_ = false, any_ = false;
};

}  // namespace sortie::launcher
