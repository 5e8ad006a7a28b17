// TrainingProgress: what changes from step to step, besides weights and moments; alike on every
// rank.
#pragma once

#include <cstdint>
#include <limits>

#include "trainer/ops/outliers.h"

namespace sortie::trainer {

/// Where a site is in the rounds that it trains with others (trainer/outer).
struct OuterProgress {
  std::int64_t round = 0;     // rounds that are in the weights
  std::int64_t position = 0;  // samples of the data that were granted to it, or to others before it
  // Of a round that is under way: inner steps done, the step of the schedule after them, and the
  // first sample of the site's work.
  std::int64_t done = 0, step = 0, first_sample = 0;
  /// The site's own weights are others than those of the round, and a checkpoint has both.
  std::int64_t own = 0;
};

/// The lowest validation loss so far. With trainer.keep_best: of those that save_dir/best has a
/// checkpoint of, or is about to have, or of the initial weights. A save that fails sets it back on
/// rank 0; the other ranks hear of it at the next validation.
struct BestValidation {
  double loss = std::numeric_limits<double>::infinity();  // infinite: none yet
  std::int64_t step = 0;                                  // after which it was measured
  /// What it is the loss of: validation_measure() of trainer/loop/validation.h, by which losses may
  /// be compared; 0 = not recorded.
  std::int64_t measure = 0;
  bool operator==(const BestValidation&) const = default;
};

/// Everything that changes from step to step, besides the flat buffers.
struct TrainingProgress {
  std::int64_t step = 0;              // steps done, skipped ones included
  std::int64_t consumed_samples = 0;  // trained on; the position in the data but for rollbacks
  std::int64_t updates = 0;           // AdamW's t
  std::int64_t consecutive_skips = 0;
  std::int64_t suspect_steps = 0;       // healthy ones, until checkpoints are trusted again
  OutlierState losses, gradient_norms;  // what the skipping of outliers has seen
  OuterProgress outer;                  // with several sites
  BestValidation best;
  // For people who look at a checkpoint; NaN = there is none.
  double loss = std::numeric_limits<double>::quiet_NaN();             // of the last step
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  // the last one, after
  std::int64_t validation_step = 0;                                   // this step
};

}  // namespace sortie::trainer
