// What linear.cc calls after its checks.
#pragma once

#include "trainer/ops/linear.h"

namespace sortie::trainer::ops {

void linear_forward_cpu(ExecutionContext& context, const Tensor& x, const PackedWeight& w,
                        const Tensor& bias, Tensor& y);
void linear_backward_data_cpu(ExecutionContext& context, const Tensor& dy, const PackedWeight& w,
                              Tensor& dx);
void linear_backward_weight_cpu(ExecutionContext& context, const Tensor& dy, const Tensor& x,
                                Tensor& dw, Tensor& dbias);
CrossEntropyResult linear_cross_entropy_cpu(ExecutionContext& context, const Tensor& h,
                                            const PackedWeight& w, const Tensor& targets,
                                            std::int64_t vocab_size, float grad_scale, Tensor dh,
                                            Tensor dw);

}  // namespace sortie::trainer::ops
