// Progress of the verbs of sortie-train: share, rate and remaining time, on stderr.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "trainer/storage/work_progress.h"

namespace sortie::trainer {

/// The rate of some work, smoothed over the last seconds, and the remaining time. Does no I/O and
/// reads no clock.
class ProgressMeter {
 public:
  /// `seconds` since the work began; must not decrease. A new stage restarts the meter, and so does
  /// the next piece of a stage (another total, and less done than before).
  void update(const WorkProgress& work, double seconds);
  /// "counting words  45 %  1.2 GB of 2.7 GB  310.0 MB/s  ETA 0:05"; without a total, the time
  /// since the stage began: "training  0:12 so far".
  std::string text(double seconds) const;

 private:
  WorkProgress work_;
  double begin_ = 0.0, last_ = 0.0;  // of the stage
  std::uint64_t last_done_ = 0;
  double rate_ = 0.0;  // per second; 0 = not known yet
};

/// Shows the progress of work that lasts longer than two seconds: on a terminal one line that is
/// rewritten, otherwise a line every ten seconds. With --quiet, nothing.
class ProgressLine {
 public:
  /// `verb` begins every line that is not on a terminal: "data build".
  explicit ProgressLine(std::string verb, std::FILE* out = stderr);
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Thread-safe.
  void update(const WorkProgress& work);
  /// Returns a callback for functions that report progress. This object must outlive it.
  OnProgress callback() {
    return [this](const WorkProgress& work) { update(work); };
  }
  /// Removes the line from the terminal. Nothing is shown afterwards.
  void finish();

 private:
  void run();
  double seconds() const;

  std::string verb_;
  std::FILE* out_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  ProgressMeter meter_;
  bool any_ = false, finished_ = false, line_open_ = false;
  std::jthread thread_;  // prints, since the work may report rarely
};

}  // namespace sortie::trainer
