// The progress, rate and remaining time of a longer operation: ProgressPace says when to show which
// text, ProgressLine shows it on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
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

/// How far an operation is; `total` and `unit` as in progress_text().
struct Progress {
  std::string what;
  std::uint64_t done = 0, total = 0;
  std::string unit = {};
};

/// When to show the progress: on a terminal after one second and then at any time, at most five
/// times per second; elsewhere, where each text is a line, after two seconds and then every ten.
class ProgressPace {
 public:
  explicit ProgressPace(bool terminal) : terminal_(terminal) {}
  /// Returns the text to show now; nullopt if it is too early. May be called at any rate. A
  /// different `what` begins a new phase with a separate rate.
  std::optional<std::string> text(const Progress& progress);

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  Clock::time_point begun_ = Clock::now();
  Clock::time_point shown_ = begun_;
  std::string phase_;
  TransferRate rate_;
  bool any_ = false;
};

/// Shows progress on stderr; on a terminal it rewrites one line. Prints nothing with --quiet.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// As ProgressPace::text().
  void show(const Progress& progress);
  void show(std::string what, std::uint64_t done, std::uint64_t total, std::string unit = "") {
    show({std::move(what), done, total, std::move(unit)});
  }
  /// Removes the line. Call before other output.
  void clear();

 private:
  const bool terminal_, quiet_;
  ProgressPace pace_;
  bool visible_ = false;
};

}  // namespace sortie::launcher
