// The inputs and outputs of the gate of a step's update, and its decision, on plain values, so that
// the CPU and a GPU kernel compute the same.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/base/host_device.h"
#include "trainer/ops/outliers.h"
#include "trainer/random/portable_math.h"

namespace sortie::trainer::ops {

/// Why an update is skipped; the first reason that holds.
enum class GateReason : std::uint8_t {
  none,
  gradient_not_finite,
  loss_not_finite,
  loss_spike,    // UpdateRule::spike_ratio
  loss_outlier,  // UpdateRule::loss
  norm_outlier,  // UpdateRule::norm
};

/// Parameters of the decision; the same in all steps of a run.
struct UpdateRule {
  double clipping = 0.0;  // the largest gradient norm; 0 = unlimited
  double beta1 = 0.0, beta2 = 0.0;
  OutlierLimit loss{}, norm{};
  double spike_ratio = 0.0;  // a loss above this multiple of the earlier mean is a spike; 0 = off
};

/// What the gate keeps from step to step.
struct GateState {
  std::int64_t updates = 0;  // updates made so far: the t of AdamW's bias correction
  OutlierState losses{}, norms{};
  bool operator==(const GateState&) const = default;
};

/// The decision for one step.
struct GateOutcome {
  GateReason reason = GateReason::none;
  double loss = 0.0, norm = 0.0;
  GateState state;  // after the step
};

/// Inputs of one step: loss = loss_sum / loss_count, norm = sqrt(norm_weight * squared_norm).
struct GateStep {
  double loss_count = 1.0, norm_weight = 1.0;
};

SORTIE_HOST_DEVICE inline bool is_spike(const UpdateRule& rule, const GateState& seen,
                                        double loss) {
  // The mean of fewer values means little.
  constexpr std::int64_t kFewest = 8;
  const std::int64_t fewest = rule.loss.window < kFewest ? rule.loss.window : kFewest;
  return rule.spike_ratio > 0 && std::isfinite(loss) && seen.losses.count >= fewest &&
         seen.losses.mean > 0 && loss > rule.spike_ratio * seen.losses.mean;
}

SORTIE_HOST_DEVICE inline GateReason reason_to_skip(const UpdateRule& rule, const GateState& seen,
                                                    double loss, double norm) {
  if (!std::isfinite(norm)) return GateReason::gradient_not_finite;
  if (!std::isfinite(loss)) return GateReason::loss_not_finite;
  if (is_spike(rule, seen, loss)) return GateReason::loss_spike;
  if (stands_out(seen.losses, rule.loss, loss)) return GateReason::loss_outlier;
  if (stands_out(seen.norms, rule.norm, norm)) return GateReason::norm_outlier;
  return GateReason::none;
}

/// 1 - beta^t.
SORTIE_HOST_DEVICE inline float bias_correction(double beta, std::int64_t t) {
  return static_cast<float>(1.0 - portable_power(beta, t));
}

SORTIE_HOST_DEVICE inline void write_gate(const UpdateRule& rule, bool made, std::int64_t t,
                                          float grad_scale, float* gate) {
  gate[0] = made ? 1.0f : 0.0f;
  gate[1] = grad_scale;
  gate[2] = bias_correction(rule.beta1, t);
  gate[3] = 1.0f / std::sqrt(bias_correction(rule.beta2, t));
}

SORTIE_HOST_DEVICE inline GateState load_gate_state(const double* values) {
  GateState state;
  state.updates = static_cast<std::int64_t>(values[0]);
  state.losses = {values[1], values[2], static_cast<std::int64_t>(values[3])};
  state.norms = {values[4], values[5], static_cast<std::int64_t>(values[6])};
  return state;
}
SORTIE_HOST_DEVICE inline void store_gate_state(const GateState& state, double* values) {
  values[0] = static_cast<double>(state.updates);
  values[1] = state.losses.mean;
  values[2] = state.losses.variance;
  values[3] = static_cast<double>(state.losses.count);
  values[4] = state.norms.mean;
  values[5] = state.norms.variance;
  values[6] = static_cast<double>(state.norms.count);
}

SORTIE_HOST_DEVICE inline void decide(const UpdateRule& rule, const GateStep& step, double loss_sum,
                                      double squared_norm, double* state, float* gate,
                                      double* outcome) {
  GateState seen = load_gate_state(state);
  const double loss = loss_sum / step.loss_count;
  const double norm = std::sqrt(squared_norm * step.norm_weight);
  const GateReason reason = reason_to_skip(rule, seen, loss, norm);
  const bool made = reason == GateReason::none;
  // A spike counts as the largest loss that is not one, also if another reason comes first.
  add_value(seen.losses, rule.loss,
            is_spike(rule, seen, loss) ? rule.spike_ratio * seen.losses.mean : loss);
  add_value(seen.norms, rule.norm, norm);
  if (made) ++seen.updates;
  float grad_scale = 1.0f;
  if (rule.clipping > 0 && norm > rule.clipping)
    grad_scale = static_cast<float>(rule.clipping / (norm + 1e-6));
  // Before the first update t = 0 has no correction. The corrections of a closed gate are not read.
  write_gate(rule, made, made ? seen.updates : seen.updates + 1, grad_scale, gate);
  store_gate_state(seen, state);
  outcome[0] = static_cast<double>(static_cast<std::uint8_t>(reason));
  outcome[1] = loss;
  outcome[2] = norm;
  store_gate_state(seen, outcome + 3);
}

}  // namespace sortie::trainer::ops
