// Linear layers in FP8 on the tape.
#pragma once

#include "trainer/autograd/functions.h"

namespace sortie::trainer {

/// Whether linear() of this x and weight is in FP8.
bool multiplies_in_fp8(const Var& x, const Parameter& weight);

/// linear() without the low-rank update, in FP8: x and the weight in E4M3, the gradient of the
/// result in E5M2, each scaled as a whole. y, dx and the bias are what they are in bf16, gradients
/// of weight and bias f32. For the backward pass x is kept as the FP8 copy that the weight's
/// gradient takes, where the weight has one, and not in bf16.
Var fp8_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
               LinearOptions options);

}  // namespace sortie::trainer
