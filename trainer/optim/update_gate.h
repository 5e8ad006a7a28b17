// UpdateGate: decides whether a step's update is made, by comparing its loss and gradient norm with
// those of earlier steps. ops/update_gate.h decides where these values are; the host may read the
// decision later.
#pragma once

#include <string>

#include "common/config/schema.h"
#include "trainer/ops/update_gate.h"

namespace sortie::trainer {

class UpdateGate {
 public:
  /// Rules from [trainer] on_loss_spike and [optimizer] skip_loss_zscore,
  /// skip_gradient_norm_zscore, outlier_window, gradient_clipping.
  explicit UpdateGate(const config::JobConfig& job);

  /// Allocates memory, with an empty history.
  void allocate(ExecutionContext& context);
  /// Continues from a saved state.
  void resume(ExecutionContext& context, const ops::GateState& state);

  /// Decides a step and writes the decision to `outcome`, f64 [kGateOutcomeValues].
  void decide(ExecutionContext& context, const ops::GateStep& step, const Tensor& loss_sum,
              const Tensor& squared_norm, Tensor& outcome);
  /// The gate of the last step decided, for its updates; f32 [kGateValues].
  const Tensor& gate() const { return gate_; }

  /// Why the step's update was not made, given the state before it; empty if it was made.
  std::string reason(const ops::GateOutcome& outcome, const ops::GateState& before) const;

 private:
  ops::UpdateRule rule_;
  Tensor state_, gate_;
};

}  // namespace sortie::trainer
