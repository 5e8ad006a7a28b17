#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/update_gate_values.h"

namespace sortie::trainer::ops {

void CpuBackend::decide_update(ExecutionContext&, const UpdateRule& rule, const GateStep& step,
                               const Tensor& loss_sum, const Tensor& squared_norm, Tensor& seen,
                               Tensor& gate, Tensor& outcome) {
  decide(rule, step, *loss_sum.data<double>(), *squared_norm.data<double>(), seen.data<double>(),
         gate.data<float>(), outcome.data<double>());
}

}  // namespace sortie::trainer::ops
