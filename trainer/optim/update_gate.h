// UpdateGate: whether a step's update is made, by its loss and gradient norm beside those before
// it. Decided where these lie, by ops/update_gate.h; the host may read it whenever it likes.
#pragma once

#include <string>

#include "common/config/schema.h"
#include "trainer/ops/update_gate.h"

namespace sortie::trainer {

class UpdateGate {
 public:
  /// By [trainer] on_loss_spike and [optimizer] skip_loss_zscore, skip_gradient_norm_zscore,
  /// outlier_window, gradient_clipping.
  explicit UpdateGate(const config::JobConfig& job);

  /// Takes memory; nothing was seen so far.
  void allocate(ExecutionContext& context);
  /// Goes on from there.
  void resume(ExecutionContext& context, const ops::GateState& state);

  /// Decides a step; what it decided is written to `outcome` f64 [kGateOutcomeValues].
  void decide(ExecutionContext& context, const ops::GateStep& step, const Tensor& loss_sum,
              const Tensor& squared_norm, Tensor& outcome);
  /// Of the last step decided, for its updates; f32 [kGateValues].
  const Tensor& gate() const { return gate_; }

  /// Why the step's update was not made, given what had been seen before it.
  std::string reason(const ops::GateOutcome& outcome, const ops::GateState& before) const;

 private:
  ops::UpdateRule rule_;
  Tensor state_, gate_;
};

}  // namespace sortie::trainer
