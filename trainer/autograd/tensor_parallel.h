// Ops of tensor parallelism, where the ranks of a group share the work of each layer (Shoeybi et
// al. 2019). With sequence parallelism they also share the rows between the shared products
// (Korthikanti et al. 2022).
//
// A product whose outputs are cut needs all rows: enter() comes before it. A product whose inputs
// are cut gives a partial sum: leave() comes after it. Every rank of the group runs the same tape,
// so that all issue the same collectives in the same order, also when a segment is recomputed.
#pragma once

#include "trainer/autograd/functions.h"
#include "trainer/parallel/context_group.h"
#include "trainer/parallel/tensor_group.h"

namespace sortie::trainer {

/// Returns the input of the group's cut products: x itself or, with sequence parallelism, the rows
/// of all ranks. In the backward pass each rank has a partial gradient: x gets the sum over ranks
/// or, with sequence parallelism, this rank's rows of it. Returns x if `group` is null, as do the
/// functions below.
Var enter(Graph& graph, const Var& x, const TensorGroup* group);
/// Returns the sum of x over ranks or, with sequence parallelism, this rank's rows of it. x must
/// not be used afterwards. Backward: the gradient, which is the same on every rank, passes through;
/// with sequence parallelism its rows are gathered.
Var leave(Graph& graph, const Var& x, const TensorGroup* group);

/// Returns x, which is whole on every rank and which each rank uses for its own part of the work.
/// Backward: sums the gradient over ranks.
Var sum_gradient(Graph& graph, const Var& x, const TensorGroup* group);
/// With sequence parallelism returns the rows of all ranks, for work that every rank does
/// identically. Backward: each rank takes its own rows of the gradient.
Var gather_rows(Graph& graph, const Var& x, const TensorGroup* group);
/// Returns this rank's rows of a dense tensor that every rank has whole; all rows without sequence
/// parallelism.
Tensor own_rows(const Tensor& whole, const TensorGroup* group);

/// embedding() with the rows of `table` cut over the group.
Var embedding(Graph& graph, const Tensor& tokens, Parameter& table, const TensorGroup* group);
/// head_loss() with the rows of `head` cut over the group. h has all rows: the result of enter().
void head_loss(Graph& graph, const Var& h, Parameter& head, const Tensor& targets,
               const ops::CrossEntropySpec& spec, Tensor& loss, const TensorGroup* group);
/// dropout() of the rows that this rank has between the shared products. `sharers`: the ranks that
/// share the tokens of each sequence; null = none. Drops the same elements as a single process.
Var dropout(Graph& graph, const Var& x, const ops::Dropout& dropout, std::int64_t samples,
            const TensorGroup* group, const ContextGroup* sharers);

}  // namespace sortie::trainer
