// Gradients of which each rank of a tensor-parallel group has a part.
#pragma once

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/tensor_group.h"

namespace sortie::trainer {

/// Sums over the group, in one collective, what its ranks have whole and get parts of the gradient
/// of: norms and the like where rows are shared, what is met by a rank's heads or columns alone,
/// and the key-value heads that ranks have alike. Behind the sum over replicas or in front of it:
/// the two can be exchanged. Stream order; nothing for a null group.
void sum_partial_gradients(ParameterStore& store, const TensorGroup* group);

}  // namespace sortie::trainer
