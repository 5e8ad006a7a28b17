// Values and ops where the ranks of a group share the work of each layer (Shoeybi et al. 2019), and
// with sequence parallelism the rows between the shared products too (Korthikanti et al. 2022).
//
// A product whose outputs are cut takes all rows: enter() in front of it. A product whose inputs
// are cut gives a part of a sum: leave() behind it. Every rank of the group runs the same tape, so
// that all issue the same collectives in the same order, in the recomputation of a segment again.
#pragma once

#include "trainer/autograd/functions.h"
#include "trainer/parallel/context_group.h"
#include "trainer/parallel/tensor_group.h"

namespace sortie::trainer {

/// x for the group's cut products: itself, or the rows of all ranks. What comes back is a part of
/// the gradient: the sum over ranks, or this rank's rows of it. A null group: x, as below.
Var enter(Graph& graph, const Var& x, const TensorGroup* group);
/// The sum of x over ranks, or this rank's rows of it. x is not used any more. The gradient is that
/// of every rank, or is gathered.
Var leave(Graph& graph, const Var& x, const TensorGroup* group);

/// x, which every rank has whole and goes on with for its own part: the gradient is summed.
Var sum_gradient(Graph& graph, const Var& x, const TensorGroup* group);
/// The rows of all ranks, where rows are shared, for what every rank then does alike: of the
/// gradient each rank takes its rows.
Var gather_rows(Graph& graph, const Var& x, const TensorGroup* group);
/// Of a dense tensor that every rank has whole, the rows between the shared products.
Tensor own_rows(const Tensor& whole, const TensorGroup* group);

/// embedding() with the rows of `table` cut over the group.
Var embedding(Graph& graph, const Tensor& tokens, Parameter& table, const TensorGroup* group);
/// head_loss() of all rows h, which has entered, with the rows of `head` cut over the group.
void head_loss(Graph& graph, const Var& h, Parameter& head, const Tensor& targets,
               const ops::CrossEntropySpec& spec, Tensor& loss, const TensorGroup* group);
/// dropout() of the rows between the shared products, of a rank's tokens: the bits of one process.
Var dropout(Graph& graph, const Var& x, const ops::Dropout& dropout, std::int64_t samples,
            const TensorGroup* group, const ContextGroup* sharers);

}  // namespace sortie::trainer
