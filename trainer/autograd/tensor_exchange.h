// Exchanges of a tensor-parallel group and the backward steps that belong to them: what
// tensor_parallel.h and tensor_products.h share. The stream goes on when a collective is done; the
// host goes on at once where it can.
#pragma once

#include <cstdint>

#include "trainer/autograd/functions.h"
#include "trainer/parallel/tensor_group.h"

namespace sortie::trainer {

/// The sum over ranks, in place.
Communicator::Handle begin_sum(ExecutionContext& context, const TensorGroup& group,
                               const Tensor& values);

/// Values that other ranks have a part in, and what brings them.
struct Arriving {
  Tensor values;
  Communicator::Handle handle;
  Tensor mine;  // of a gather: what this rank gives

  Tensor land(ExecutionContext& context);
};

/// [M, C] -> [size * M, C], in the order of the ranks.
Arriving begin_gather(ExecutionContext& context, const TensorGroup& group, const Tensor& rows);
/// How many of these rows each rank has: the same part, which is checked.
std::int64_t rows_of_rank(const Tensor& all, const TensorGroup& group);
/// [size * M, C] -> [M, C]: this rank's rows of the sum over ranks.
Arriving begin_scatter(ExecutionContext& context, const TensorGroup& group, const Tensor& all);

/// How much of what a graph has put off is done beside an exchange. A layer's part of the backward
/// pass has two: rows are gathered in front of its last product, and summed behind its first one.
/// By then it has put off both products' weights: one is done beside the sum, the other beside the
/// next gather. Nothing here depends on how long an exchange takes, so gradients become final in
/// the same order on all ranks.
enum class Beside : std::uint8_t { all, half };
void compute_beside(Graph& graph, const TensorGroup& group, const Communicator::Handle& exchange,
                    Beside part);

/// The gradient of rows that were gathered is that of this rank's rows.
void record_enter(Graph& graph, const Var& x, const Var& entered, const TensorGroup* group);
/// The gradient of each row of a sum is that of the rank which has the row.
void record_leave(Graph& graph, const Var& x, const Var& left, const TensorGroup* group);

}  // namespace sortie::trainer
