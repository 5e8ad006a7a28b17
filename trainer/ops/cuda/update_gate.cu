#include "trainer/ops/cuda/update_gate.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// One thread.
__global__ void gate_kernel(UpdateRule rule, GateStep step, GateValues values) {
  decide(rule, step, *values.loss_sum, *values.squared_norm, values.state, values.gate,
         values.outcome);
}

}  // namespace

void decide_update_there(cudaStream_t stream, const UpdateRule& rule, const GateStep& step,
                         const GateValues& values) {
  launch(gate_kernel, {.blocks = 1, .threads = 1}, stream, rule, step, values);
}

}  // namespace sortie::trainer::ops::cuda
