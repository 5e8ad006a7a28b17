// Scrubber: repeatedly verifies the bytes of all committed checkpoints in the background of
// training, so that damage is found while other copies still exist.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "trainer/checkpoint/store.h"

namespace sortie::trainer {

/// The result of verifying every checkpoint of a save folder and of its `best` once.
struct ScrubReport {
  std::int64_t checked = 0, damaged = 0;
  std::vector<std::string> notes;  // one per damaged checkpoint: which, why, where it is now
  std::int64_t newest_good = 0;    // step of the newest regular one that is good; 0 = none
  std::int64_t moved_best = 0;     // step of the one of `best` that was moved away; 0 = none
};

/// Compares every byte of all checkpoints with its hash. Moves a damaged checkpoint to
/// save_dir/quarantine/, where nothing is ever removed. If no good checkpoint would be left, the
/// damaged ones stay, so that no later start considers the folder empty. No-op if the store belongs
/// to another attempt by now. After a stop request returns soon, with what was found so far.
ScrubReport scrub(const CheckpointStore& store, const std::stop_token& stop = {});

/// Runs scrub() every `interval` on its own thread at low priority, for the first time after one
/// interval. Thread-safe.
class Scrubber {
 public:
  Scrubber(CheckpointStore store, std::chrono::milliseconds interval);
  /// Stops a running scrub(), which reads at most some more megabytes.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  /// Returns the notes since the last call.
  std::vector<std::string> take_notes();
  /// Returns the step of the checkpoint that was moved out of `best` since the last call; 0 = none.
  std::int64_t take_moved_best();
  /// Step of the newest regular checkpoint that the last scrub() found good; 0 = none.
  std::int64_t newest_good() const;

 private:
  void run();

  const CheckpointStore store_;
  const std::chrono::milliseconds interval_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::stop_source stop_;
  std::vector<std::string> notes_;
  std::int64_t newest_good_ = 0, moved_best_ = 0;
  std::thread thread_;
};

}  // namespace sortie::trainer
