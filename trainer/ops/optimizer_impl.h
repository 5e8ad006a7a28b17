// What optimizer.cc calls after its checks.
#pragma once

#include "trainer/ops/optimizer.h"

namespace sortie::trainer::ops {

double sum_of_squares_cpu(ExecutionContext& context, std::span<const float> values);
void adamw_cpu(ExecutionContext& context, const AdamWStep& step, std::span<float> w,
               std::span<const float> grad, std::span<float> m, std::span<float> v,
               std::span<bf16> compute);

}  // namespace sortie::trainer::ops
