// What norm.cc calls after its checks.
#pragma once

#include "trainer/ops/norm.h"

namespace sortie::trainer::ops {

void residual_norm_forward_cpu(ExecutionContext& context, NormKind kind, const Tensor& residual,
                               const Tensor& branch, const Tensor& weight, const Tensor& bias,
                               float eps, Tensor& residual_out, Tensor& y, Tensor& stats);
void residual_norm_backward_cpu(ExecutionContext& context, NormKind kind, const Tensor& dy,
                                const Tensor& dresidual, const Tensor& x, const Tensor& weight,
                                const Tensor& stats, Tensor& dx, Tensor& dweight, Tensor& dbias);

}  // namespace sortie::trainer::ops
