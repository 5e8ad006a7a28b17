// What latent.cc calls after its checks.
#pragma once

#include "trainer/ops/latent.h"

namespace sortie::trainer::ops {

void latent_keys_forward_cpu(ExecutionContext& context, const Tensor& kv, const Tensor& rope,
                             Tensor& k);
void latent_keys_backward_cpu(ExecutionContext& context, const Tensor& dk, Tensor& dkv,
                              Tensor& drope);
void concat_columns_cpu(ExecutionContext& context, const Tensor& a, const Tensor& b, Tensor& y);

}  // namespace sortie::trainer::ops
