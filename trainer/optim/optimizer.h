// One optimizer step over the flat buffers: global norm, skip decision, clipping, AdamW.
#pragma once

#include "common/config/schema.h"
#include "trainer/nn/parameter.h"

namespace sortie::trainer {

struct StepOutcome {
  double grad_norm = 0.0;
  bool skipped = false;  // gradients were not finite: nothing was changed
};

class Optimizer {
 public:
  Optimizer(const config::OptimizerConfig& config, ParameterStore& store)
      : config_(config), store_(store) {}

  /// Gradients must be final (reduced over all ranks), so that every rank decides alike. Clipping
  /// scales by clip / (norm + 1e-6) when norm > clip, as torch.nn.utils.clip_grad_norm_ does.
  StepOutcome step(ExecutionContext& context, double learning_rate);

  /// Number of applied updates: the t of AdamW's bias correction.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 private:
  const config::OptimizerConfig& config_;
  ParameterStore& store_;
  std::int64_t updates_ = 0;
};

}  // namespace sortie::trainer
