// Sums gradients of which each rank of a tensor-parallel group has computed a part.
#pragma once

#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/tensor_group.h"

namespace sortie::trainer {

/// Sums gradients over the group in one collective: those of parameters that every rank has whole,
/// but of which it computes only a part of the gradient. These are norms and the like under
/// sequence parallelism, parameters that only act on a rank's own heads or columns, and key-value
/// heads that several ranks have. May be called before or after the sum over replicas. In stream
/// order. No-op if `group` is nullptr.
void sum_partial_gradients(ParameterStore& store, const TensorGroup* group);

}  // namespace sortie::trainer
