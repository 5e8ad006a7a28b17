// The gate of a step's update: whether it is made, decided where loss and gradient norm lie, so
// that nobody has to read them first. What it decides is read by the updates themselves (adamw(),
// update_router_bias()), and by the host when it likes.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/ops/update_gate_values.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// A GateState as f64 values of a tensor.
inline constexpr std::int64_t kGateStateValues = 7;
Tensor gate_state(ExecutionContext& context, const GateState& state);

/// A GateOutcome as f64 values.
inline constexpr std::int64_t kGateOutcomeValues = 3 + kGateStateValues;
GateOutcome gate_outcome(std::span<const double> values);

/// The gate itself, f32 [kGateValues]: 1 where the update is made, else 0; what gradients are
/// scaled by; 1 - beta1^t; 1 / sqrt(1 - beta2^t), with t counting this update.
inline constexpr std::int64_t kGateValues = 4;
/// One that is open, with the corrections of update `t` (tests and measurements).
Tensor open_gate(ExecutionContext& context, double beta1, double beta2, std::int64_t t,
                 float grad_scale = 1.0f);

/// loss_sum and squared_norm f64 [1]; state f64 [kGateStateValues] is brought up to date; gate f32
/// [kGateValues] and outcome f64 [kGateOutcomeValues] are written. Clipping scales by clip / (norm
/// + 1e-6) when norm > clip, as torch.nn.utils.clip_grad_norm_ does.
void decide_update(ExecutionContext& context, const UpdateRule& rule, const GateStep& step,
                   const Tensor& loss_sum, const Tensor& squared_norm, Tensor& state, Tensor& gate,
                   Tensor& outcome);

}  // namespace sortie::trainer::ops
