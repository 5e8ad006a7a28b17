// Products of a tensor-parallel group with its exchanges beside them.
#pragma once

#include "trainer/autograd/tensor_parallel.h"

namespace sortie::trainer {

/// linear(enter(x)) and leave(linear(x)): a rank multiplies its own rows while those of the others
/// come, and the sum of one half of the rows is on its way while the other half is multiplied. Too
/// few rows, FP8 (which scales by the largest of all values), low-rank updates and graphs that are
/// observed are multiplied in one piece. Backward passes are the same in all cases.
Var enter_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                 LinearOptions options, const TensorGroup* group);
Var linear_leave(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                 LinearOptions options, const TensorGroup* group);

}  // namespace sortie::trainer
