// What elementwise.cc calls after its checks.
#pragma once

#include "trainer/ops/elementwise.h"

namespace sortie::trainer::ops {

void swiglu_forward_cpu(ExecutionContext& context, const Tensor& gate_up, Tensor& y);
void swiglu_backward_cpu(ExecutionContext& context, const Tensor& dy, const Tensor& gate_up,
                         Tensor& dgate_up);
void gelu_forward_cpu(ExecutionContext& context, Gelu kind, const Tensor& x, Tensor& y);
void gelu_backward_cpu(ExecutionContext& context, Gelu kind, const Tensor& dy, const Tensor& x,
                       Tensor& dx);
void embedding_forward_cpu(ExecutionContext& context, const Tensor& tokens, const Tensor& table,
                           Tensor& y);
void embedding_backward_cpu(ExecutionContext& context, const Tensor& tokens, const Tensor& dy,
                            Tensor& dtable);
void add_cpu(ExecutionContext& context, const Tensor& a, const Tensor& b, Tensor& y);
void convert_cpu(ExecutionContext& context, const Tensor& from, Tensor& to);

}  // namespace sortie::trainer::ops
