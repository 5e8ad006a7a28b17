// The optimizer over the flat buffers: global norm, clipping, AdamW.
#pragma once

#include "common/config/schema.h"
#include "trainer/nn/parameter.h"

namespace sortie::trainer {

class Optimizer {
 public:
  Optimizer(const config::OptimizerConfig& config, ParameterStore& store)
      : config_(config), store_(store) {}

  /// L2 norm of all gradients, which must be final (reduced over all ranks), so that every rank
  /// decides alike. Not finite when one of them is not.
  double gradient_norm(ExecutionContext& context);
  /// One update. Clipping scales by clip / (norm + 1e-6) when norm > clip, as
  /// torch.nn.utils.clip_grad_norm_ does.
  void update(ExecutionContext& context, double learning_rate, double grad_norm);

  /// Number of applied updates: the t of AdamW's bias correction.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 private:
  const config::OptimizerConfig& config_;
  ParameterStore& store_;
  std::int64_t updates_ = 0;
};

}  // namespace sortie::trainer
