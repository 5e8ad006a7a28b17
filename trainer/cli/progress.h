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

/// The rate of some work, smoothed over the last seconds, and what is left of it. Pure.
class ProgressMeter {
 public:
  /// `seconds` since the work began; they never fall. A new stage starts anew, and so does the next
  /// piece of a stage: one with another total that begins again.
  void update(const WorkProgress& work, double seconds);
  /// "counting words  45 %  1.2 GB of 2.7 GB  310.0 MB/s  ETA 0:05"; without a total the time since
  /// the stage began instead: "training  0:12 so far".
  std::string text(double seconds) const;

 private:
  WorkProgress work_;
  double begin_ = 0.0, last_ = 0.0;  // of the stage
  std::uint64_t last_done_ = 0;
  double rate_ = 0.0;  // per second; 0 = not known yet
};

/// Shows work that lasts longer than two seconds: a line that is rewritten on a terminal, else a
/// line every ten seconds; with --quiet nothing.
class ProgressLine {
 public:
  /// `verb` begins every plain line: "data build".
  explicit ProgressLine(std::string verb, std::FILE* out = stderr);
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// From any thread.
  void update(const WorkProgress& work);
  /// For functions that report progress; this must outlive it.
  OnProgress callback() {
    return [this](const WorkProgress& work) { update(work); };
  }
  /// Takes the line from the terminal. Nothing is shown afterwards.
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
  std::jthread thread_;  // shows: work may report rarely
};

}  // namespace sortie::trainer
