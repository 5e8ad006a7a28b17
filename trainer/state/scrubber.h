// Scrubber: checks the bytes of all committed checkpoints again and again, beside training, so that
// damage is found while other copies are there.
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

/// What one look at every checkpoint of a save folder, and of its `best`, has found.
struct ScrubReport {
  std::int64_t checked = 0, damaged = 0;
  std::vector<std::string> notes;  // one for each that is damaged: what, why, where it is now
  std::int64_t newest_good = 0;    // step of the newest regular one that is good; 0 = none
};

/// Compares every byte with its hash. A damaged checkpoint is moved to save_dir/quarantine/, where
/// nothing is ever removed; where no good one would be left it stays, so that no later start takes
/// the folder for an empty one. A store that belongs to another attempt by now is left alone.
/// After a stop was requested it returns soon, with what it has found so far.
ScrubReport scrub(const CheckpointStore& store, const std::stop_token& stop = {});

/// Does that every `interval` on a thread of its own at low priority, for the first time after one
/// interval.
class Scrubber {
 public:
  Scrubber(CheckpointStore store, std::chrono::milliseconds interval);
  /// Ends the look that is under way within some megabytes.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  /// Those since the last call.
  std::vector<std::string> take_notes();
  /// Step of the newest checkpoint whose bytes were found good after it was written; 0 = none.
  std::int64_t newest_good() const;

 private:
  void run();

  const CheckpointStore store_;
  const std::chrono::milliseconds interval_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::stop_source stop_;
  std::vector<std::string> notes_;
  std::int64_t newest_good_ = 0;
  std::thread thread_;
};

}  // namespace sortie::trainer
