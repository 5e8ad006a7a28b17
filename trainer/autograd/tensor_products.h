// Products of a tensor-parallel group that overlap with its exchanges.
#pragma once

#include "trainer/autograd/tensor_parallel.h"

namespace sortie::trainer {

/// linear(enter(x)) and leave(linear(x)). enter_linear() multiplies this rank's own rows while it
/// receives those of the others; linear_leave() sums one half of the rows over ranks while it
/// multiplies the other half. There is no such overlap with too few rows, in FP8 (whose scale
/// depends on the largest of all values), with low-rank updates, and in graphs with an observer.
/// The backward pass is the same in all cases.
Var enter_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                 LinearOptions options, const TensorGroup* group);
Var linear_leave(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                 LinearOptions options, const TensorGroup* group);

}  // namespace sortie::trainer
