// Kernels of the gate of updates.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/update_gate_values.h"

namespace sortie::trainer::ops::cuda {

/// Addresses of the values of decide_update().
struct GateValues {
  const double *loss_sum = nullptr, *squared_norm = nullptr;
  double* state = nullptr;
  float* gate = nullptr;
  double* outcome = nullptr;
};
void decide_update_there(cudaStream_t stream, const UpdateRule& rule, const GateStep& step,
                         const GateValues& values);

}  // namespace sortie::trainer::ops::cuda
