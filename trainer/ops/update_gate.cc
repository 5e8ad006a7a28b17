// Checks of the gate, and its values on the host.
#include "trainer/ops/update_gate.h"

#include <array>

#include "trainer/ops/copy.h"
#include "trainer/ops/dispatch.h"
#include "trainer/ops/update_gate_values.h"

namespace sortie::trainer::ops {
namespace {

bool is_gate_row(const Tensor& x, DType dtype, std::int64_t elements) {
  return x.dtype() == dtype && x.dense() && x.elements() == elements;
}

}  // namespace

Tensor gate_state(ExecutionContext& context, const GateState& state) {
  std::array<double, kGateStateValues> values{};
  store_gate_state(state, values.data());
  return tensor_from_host<double>(context, values, {kGateStateValues});
}

GateOutcome gate_outcome(std::span<const double> values) {
  SORTIE_CHECK(values.size() == kGateOutcomeValues, "an outcome of {} values", values.size());
  return {.reason = static_cast<GateReason>(static_cast<std::uint8_t>(values[0])),
          .loss = values[1],
          .norm = values[2],
          .state = load_gate_state(values.data() + 3)};
}

void decide_update(ExecutionContext& context, const UpdateRule& rule, const GateStep& step,
                   const Tensor& loss_sum, const Tensor& squared_norm, Tensor& state, Tensor& gate,
                   Tensor& outcome) {
  SORTIE_CHECK(is_gate_row(loss_sum, DType::f64, 1) && is_gate_row(squared_norm, DType::f64, 1) &&
                   is_gate_row(state, DType::f64, kGateStateValues) &&
                   is_gate_row(gate, DType::f32, kGateValues) &&
                   is_gate_row(outcome, DType::f64, kGateOutcomeValues),
               "a gate of {}, {}, {}, {}, {} values", loss_sum.elements(), squared_norm.elements(),
               state.elements(), gate.elements(), outcome.elements());
  SORTIE_CHECK(step.loss_count > 0, "a mean over {} losses", step.loss_count);
  dispatch<&Backend::decide_update>(context, rule, step, loss_sum, squared_norm, state, gate,
                                    outcome);
}

}  // namespace sortie::trainer::ops
