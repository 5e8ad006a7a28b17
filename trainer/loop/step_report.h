// StepReport: the result of one step, equal on every rank unless a field says otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sortie::trainer {

/// Why a step's update was not made.
enum class StepTrouble {
  none,
  nonfinite,  // its loss or gradient: trainer.on_nonfinite
  spike,      // of its loss: trainer.on_loss_spike
  outlier,    // optimizer.skip_loss_zscore, skip_gradient_norm_zscore: always skipped
};

struct StepReport {
  std::int64_t step = 0;       // counts from 1
  double loss = 0.0;           // mean over the counted tokens of the global batch
  std::int64_t samples = 0;    // sequences of the global batch
  std::int64_t tokens = 0;     // of these samples, with and without a target
  double learning_rate = 0.0;  // of parameters in no group
  double grad_norm = 0.0;
  double data_seconds = 0.0;  // of this rank: how long the step waited for its samples
  // For models with mixtures or multi-token prediction; not part of `loss`.
  std::optional<double> balance_loss;  // of the routers, coefficient included
  std::optional<double> mtp_loss;
  std::optional<double> dropped_choices;  // share of routers' choices; only with an expert capacity
  bool skipped = false;
  StepTrouble trouble = StepTrouble::none;  // of a step that was skipped
  std::string skip_reason;                  // "gradients are not finite"
  std::int64_t next_sample = 0;             // position in the data after it
  bool time_is_up = false;                  // rank 0's clock says that train_duration is over
  bool saves_written = false;               // all ranks have written their parts of a checkpoint
  bool save_requested = false;              // some rank got SIGUSR1
  bool stop_requested = false;              // some rank got SIGTERM
};

}  // namespace sortie::trainer
