// TrainingProgress: what changes from step to step, besides weights and moments; the same on every
// rank.
#pragma once

#include <cstdint>
#include <limits>

#include "trainer/ops/outliers.h"

namespace sortie::trainer {

/// The position of a site in the rounds that it trains with other sites (trainer/outer).
struct OuterProgress {
  std::int64_t round = 0;     // rounds that are in the weights
  std::int64_t position = 0;  // samples of the data granted for them, to this site or to others
  // Of a round in progress: the inner steps done, the step of the schedule after them, and the
  // site's work: its first sample, its steps and the samples of a step.
  std::int64_t done = 0, step = 0, first_sample = 0, work_steps = 0, work_batch = 0;
  /// Not 0 if the site's own weights differ from those of the round; a checkpoint then has both.
  std::int64_t own = 0;
  /// Step of the schedule after which the next round begins; 0 = not recorded, or the first round.
  std::int64_t begin = 0;
  /// Steps for which the learning rate still rises, because the site has joined.
  std::int64_t warm_up = 0;
};

/// The lowest validation loss so far. With trainer.keep_best only losses count whose checkpoint is
/// in save_dir/best or is about to be, and the loss of the initial weights. A failed save resets it
/// on rank 0; the other ranks learn this at the next validation.
struct BestValidation {
  double loss = std::numeric_limits<double>::infinity();  // infinite: none yet
  std::int64_t step = 0;                                  // after which it was measured
  /// Identifies what the loss was measured on: validation_measure() of trainer/loop/validation.h.
  /// Only losses with equal values can be compared. 0 = not recorded.
  std::int64_t measure = 0;
  bool operator==(const BestValidation&) const = default;
};

/// Everything that changes from step to step, besides the flat buffers.
struct TrainingProgress {
  std::int64_t step = 0;              // steps done, skipped ones included
  std::int64_t consumed_samples = 0;  // trained on; the position in the data except for rollbacks
  std::int64_t updates = 0;           // AdamW's t
  std::int64_t consecutive_skips = 0;
  std::int64_t suspect_steps = 0;       // healthy steps left until checkpoints are trusted again
  OutlierState losses, gradient_norms;  // statistics for the skipping of outliers
  OuterProgress outer;                  // if several sites train
  BestValidation best;
  // For information only; NaN = there is none.
  double loss = std::numeric_limits<double>::quiet_NaN();             // of the last step
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  // the last one, after
  std::int64_t validation_step = 0;                                   // this step
};

}  // namespace sortie::trainer
