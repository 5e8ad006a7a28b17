// TrainingView: the state of a training, from the events of its ranks. All its strings are
// printable, because ranks are not trusted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/training/event.h"

namespace sortie::launcher {

struct TrainingView {
  struct Validation {
    std::int64_t step = 0;
    double loss = training::kUnknown;      // mean over the sets
    std::map<std::string, double> sets{};  // by set, if there are several and this run has them
  };
  struct Checkpoint {
    std::int64_t step = 0;
    std::string path;
    double time = 0;  // seconds since 1970; 0 = before this run
    bool suspect = false;
  };

  std::optional<training::StartEvent> start;
  std::int64_t first_step = 0;                 // number of steps done when this run began
  std::int64_t step = 0, steps = 0;            // steps done; total number of steps
  double loss = training::kUnknown;            // of the last step
  double tokens_per_s = training::kUnknown;    // smoothed; includes time for validation and saving
  double eta_s = training::kUnknown;           // as of `time`
  double time = 0;                             // when `step` was last set, seconds since 1970
  std::optional<Validation> validation, best;  // last; lowest loss
  std::optional<Checkpoint> checkpoint;        // the one from which the next run resumes
  std::int64_t suspect_step = 0;               // step of a newer one that is suspect; 0 = none
  std::optional<Checkpoint> best_checkpoint;
  std::optional<std::int64_t> memory_step;       // step of the checkpoint in the hosts' memory
  std::map<std::int64_t, std::string> profiles;  // rank -> "HOST:PATH"; "" = in the run folder
  bool done = false;                             // the trainer reported its end

  /// Whether any rank has reported training.
  bool any() const { return start || steps > 0; }
  /// Whether all steps are done, and saved if they are to be.
  bool finished() const;

  /// Adds an event. `when`: its arrival time, seconds since 1970.
  void take(const training::Event& event, double when);

  /// Seconds from `now` to the end of the training; NaN = unknown.
  double eta_at(double now) const;
};

}  // namespace sortie::launcher
