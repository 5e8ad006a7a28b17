// Exchanges of a tensor-parallel group and their backward steps, shared by tensor_parallel.h and
// tensor_products.h. The current stream waits for a collective; the host waits only if the device
// computes in the host's thread.
#pragma once

#include <cstdint>

#include "trainer/autograd/functions.h"
#include "trainer/parallel/tensor_group.h"

namespace sortie::trainer {

/// Starts to sum `values` over ranks, in place.
Communicator::Handle begin_sum(ExecutionContext& context, const TensorGroup& group,
                               const Tensor& values);

/// The output of a collective in flight.
struct Arriving {
  Tensor values;
  Communicator::Handle handle;
  Tensor mine;  // input of an all-gather: this rank's rows

  /// Makes the current stream wait for the collective; returns the values.
  Tensor land(ExecutionContext& context);
};

/// Starts an all-gather of rows: [M, C] -> [size * M, C], in the order of the ranks.
Arriving begin_gather(ExecutionContext& context, const TensorGroup& group, const Tensor& rows);
/// Returns how many of these rows each rank has; checks that they divide evenly.
std::int64_t rows_of_rank(const Tensor& all, const TensorGroup& group);
/// Starts a reduce-scatter: [size * M, C] -> [M, C], this rank's rows of the sum over ranks.
Arriving begin_scatter(ExecutionContext& context, const TensorGroup& group, const Tensor& all);

/// How much of the postponed work of a graph runs during an exchange. The backward pass of a layer
/// has two exchanges: a gather before its last product, and a sum after its first one. By then it
/// has postponed the weight gradients of both products: one is computed during the sum, the other
/// during the next gather. This does not depend on how long an exchange takes, so gradients become
/// final in the same order on all ranks.
enum class Beside : std::uint8_t { all, half };
/// Runs this part of the graph's postponed work while `exchange` is in flight. TensorGroup::poll()
/// makes progress on the exchange meanwhile.
void compute_beside(Graph& graph, const TensorGroup& group, const Communicator::Handle& exchange,
                    Beside part);

/// Records the backward step of an all-gather of rows: this rank's rows of the summed gradient.
void record_enter(Graph& graph, const Var& x, const Var& entered, const TensorGroup* group);
/// Records the backward step of a reduce-scatter of rows: the gradient rows of all ranks.
void record_leave(Graph& graph, const Var& x, const Var& left, const TensorGroup* group);

}  // namespace sortie::trainer
