// What attention.cc calls after its checks.
#pragma once

#include "trainer/ops/attention.h"

namespace sortie::trainer::ops {

void rope_cpu(ExecutionContext& context, Tensor& x, const RopeTable& table, const Tensor& positions,
              bool inverse);
void attention_forward_cpu(ExecutionContext& context, const Tensor& q, const Tensor& k,
                           const Tensor& v, const AttentionMask& mask, Tensor& out, Tensor& lse);
void attention_backward_cpu(ExecutionContext& context, const Tensor& q, const Tensor& k,
                            const Tensor& v, const Tensor& out, const Tensor& lse,
                            const Tensor& dout, const AttentionMask& mask, Tensor& dq, Tensor& dk,
                            Tensor& dv);

}  // namespace sortie::trainer::ops
