// An update gate that is open, for tests and benches of optimizers without a decision.
#pragma once

#include <array>
#include <cstdint>

#include "trainer/ops/copy.h"
#include "trainer/ops/update_gate.h"

namespace sortie::trainer::test {

/// An open gate (ops/update_gate.h) with the bias corrections of update `t`.
inline Tensor open_gate(ExecutionContext& context, double beta1, double beta2, std::int64_t t,
                        float grad_scale = 1.0f) {
  std::array<float, ops::kGateValues> values{};
  ops::write_gate({.beta1 = beta1, .beta2 = beta2}, true, t, grad_scale, values.data());
  return ops::tensor_from_host<float>(context, values, {ops::kGateValues});
}

}  // namespace sortie::trainer::test
