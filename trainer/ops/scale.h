// y = x * factor.
#pragma once

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// x and y dense, of one dtype and shape; y may be x.
void scale(ExecutionContext& context, const Tensor& x, float factor, Tensor& y);

}  // namespace sortie::trainer::ops
