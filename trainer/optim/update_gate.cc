#include "trainer/optim/update_gate.h"

#include <fmt/core.h>

namespace sortie::trainer {

UpdateGate::UpdateGate(const config::JobConfig& job) {
  const config::OptimizerConfig& optimizer = job.optimizer;
  rule_.clipping = optimizer.gradient_clipping;
  rule_.beta1 = optimizer.beta1;
  rule_.beta2 = optimizer.beta2;
  rule_.loss = {optimizer.skip_loss_zscore, optimizer.outlier_window};
  rule_.norm = {optimizer.skip_gradient_norm_zscore, optimizer.outlier_window};
  if (job.trainer.on_loss_spike != "ignore") rule_.spike_ratio = job.trainer.loss_spike_ratio;
}

void UpdateGate::allocate(ExecutionContext& context) {
  gate_ = context.zeros(DType::f32, {ops::kGateValues});
  state_ = context.zeros(DType::f64, {ops::kGateStateValues});
}

void UpdateGate::resume(ExecutionContext& context, const ops::GateState& state) {
  state_ = ops::gate_state(context, state);
}

void UpdateGate::decide(ExecutionContext& context, const ops::GateStep& step,
                        const Tensor& loss_sum, const Tensor& squared_norm, Tensor& outcome) {
  ops::decide_update(context, rule_, step, loss_sum, squared_norm, state_, gate_, outcome);
}

std::string UpdateGate::reason(const ops::GateOutcome& outcome,
                               const ops::GateState& before) const {
  using ops::GateReason;
  const auto far = [](const char* what, double value, const OutlierState& seen) {
    return fmt::format("the {} of {:.4g} is {:.1f} deviations above its mean of {:.4g}", what,
                       value, deviations(seen, value), seen.mean);
  };
  switch (outcome.reason) {
    case GateReason::none:
      return {};
    case GateReason::gradient_not_finite:
      return "gradients are not finite";
    case GateReason::loss_not_finite:
      return "the loss is not finite";
    case GateReason::loss_spike:
      return fmt::format("the loss of {:.4g} is {:.1f} times its mean of {:.4g}", outcome.loss,
                         outcome.loss / before.losses.mean, before.losses.mean);
    case GateReason::loss_outlier:
      return far("loss", outcome.loss, before.losses);
    case GateReason::norm_outlier:
      return far("gradient norm", outcome.norm, before.norms);
  }
  SORTIE_CHECK(false, "an unknown reason");
}

}  // namespace sortie::trainer
