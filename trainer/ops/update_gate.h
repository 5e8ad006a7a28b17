// The gate of a step's update: decides on the device, where loss and gradient norm are, whether the
// update is made, so that the host need not read them first. The updates (adamw(),
// demo_send(), demo_move(), update_router_bias()) read the decision on the device; the host may
// read it later.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/ops/update_gate_values.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// A GateState as a tensor of f64 values.
inline constexpr std::int64_t kGateStateValues = 7;
Tensor gate_state(ExecutionContext& context, const GateState& state);

/// A GateOutcome as f64 values.
inline constexpr std::int64_t kGateOutcomeValues = 3 + kGateStateValues;
GateOutcome gate_outcome(std::span<const double> values);

/// The gate itself, f32 [kGateValues]: 1 if the update is made, else 0; the factor of gradients; 1
/// - beta1^t; 1 / sqrt(1 - beta2^t), where t counts this update.
inline constexpr std::int64_t kGateValues = 4;

/// Decides a step's update from loss_sum and squared_norm, f64 [1]. Updates state f64
/// [kGateStateValues]; writes gate f32 [kGateValues] and outcome f64 [kGateOutcomeValues]. Clipping
/// scales by clip / (norm + 1e-6) if norm > clip, as torch.nn.utils.clip_grad_norm_ does.
void decide_update(ExecutionContext& context, const UpdateRule& rule, const GateStep& step,
                   const Tensor& loss_sum, const Tensor& squared_norm, Tensor& state, Tensor& gate,
                   Tensor& outcome);

}  // namespace sortie::trainer::ops
