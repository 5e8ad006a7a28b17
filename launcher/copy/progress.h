// ProgressLine: shows the progress, rate and remaining time of a longer operation on stderr. On a
// terminal it rewrites one line, starting after one second; elsewhere it prints a line after two
// seconds and then every ten. Prints nothing with --quiet.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace sortie::launcher {

/// Returns "256.0 MiB", "1.5 GiB" or "812 B".
std::string byte_count(std::uint64_t bytes);

/// Bytes per second, averaged over the last ten seconds including pauses.
class TransferRate {
 public:
  using Clock = std::chrono::steady_clock;
  /// `done`: total so far. A smaller value than before restarts the measurement.
  void add(Clock::time_point now, std::uint64_t done);
  /// 0 until it can be determined.
  double per_second() const;

 private:
  std::deque<std::pair<Clock::time_point, std::uint64_t>> seen_;
};

/// Returns "push to 4 hosts: 128.0 MiB of 512.0 MiB, 25 %, 12.3 MiB/s, ETA 31s". `total` 0 =
/// unknown. With a `unit`, the values are counts of it instead of bytes: "plan: 30 of 244 layouts,
/// 12 %, ETA 20s".
std::string progress_text(const std::string& what, std::uint64_t done, std::uint64_t total,
                          double per_second, const std::string& unit = "");

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// May be called at any rate. A different `what` begins a new phase with a separate rate.
  void show(const std::string& what, std::uint64_t done, std::uint64_t total,
            const std::string& unit = "");
  /// Removes the line. Call before other output.
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
