// TrainingView: what is known of a training run from the events that its ranks sent. Its texts are
// printable: ranks are not trusted.
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
    double loss = training::kUnknown;      // the mean over the sets
    std::map<std::string, double> sets{};  // by name, where there are several and this run has it
  };
  struct Checkpoint {
    std::int64_t step = 0;
    std::string path;
    double time = 0;  // seconds since 1970; 0 = before this run
  };

  std::optional<training::StartEvent> start;
  std::int64_t first_step = 0;                 // steps done when this run began
  std::int64_t step = 0, steps = 0;            // done, and to be reached
  double loss = training::kUnknown;            // of the last step
  double tokens_per_s = training::kUnknown;    // smoothed; validation and saving count
  double eta_s = training::kUnknown;           // as of `time`
  double time = 0;                             // of the last step, seconds since 1970
  std::optional<Validation> validation, best;  // last, lowest
  std::optional<Checkpoint> checkpoint;        // newest that the next run goes on from
  std::optional<Checkpoint> best_checkpoint;
  std::optional<std::int64_t> memory_step;       // of the checkpoint in the memory of the hosts
  std::map<std::int64_t, std::string> profiles;  // by rank: "HOST:PATH"; "" = in the run folder
  bool done = false;                             // the trainer said that it has ended

  /// Whether any rank has spoken of training.
  bool any() const { return start || steps > 0; }
  bool finished() const { return steps > 0 && step >= steps; }

  /// `when`: seconds since 1970 at which the event arrived.
  void take(const training::Event& event, double when);

  /// Seconds from `now` to the end; NaN when not known.
  double eta_at(double now) const;
};

}  // namespace sortie::launcher
