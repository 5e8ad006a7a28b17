// Linear layers in FP8 on the tape.
#pragma once

#include "trainer/autograd/functions.h"

namespace sortie::trainer {

/// Whether linear() of this x and weight runs in FP8.
bool multiplies_in_fp8(const Var& x, const Parameter& weight);

/// linear() without the low-rank update, in FP8: x and the weight in E4M3, the gradient of the
/// result in E5M2, each with one scale per matrix. y, dx and the bias have the types of the bf16
/// path; gradients of weight and bias are f32. The tape does not keep the bf16 x for the backward
/// pass: it keeps the FP8 copy that the weight's gradient needs, and none if the weight is not
/// trained.
Var fp8_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
               LinearOptions options);

}  // namespace sortie::trainer
