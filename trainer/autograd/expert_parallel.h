// Exchange of rows between the ranks that share out the experts of a mixture, on the tape.
//
// Every rank of the group runs the same tape, so that all issue the same collectives in the same
// order, also when a segment is recomputed. A rank that sends or receives no rows takes part as
// well.
#pragma once

#include <vector>

#include "trainer/autograd/graph.h"
#include "trainer/ops/moe_experts.h"
#include "trainer/parallel/expert_group.h"

namespace sortie::trainer {

/// Numbers of rows that this rank sends to and receives from each rank.
struct RowExchange {
  std::vector<std::int64_t> sends, receives;  // rows, by rank
  std::int64_t sent = 0, received = 0;        // rows in total
  /// i32 [received, 1]: the expert of each received row, counted from this rank's first expert.
  Tensor experts;

  /// The exchange in the opposite direction, without `experts`.
  RowExchange reversed() const { return {receives, sends, received, sent, {}}; }
};

/// Exchanges the row counts per expert between the ranks of the group; collective. `rows` are
/// sorted by the experts of all ranks, without padding. Blocks the host until the routing is known.
/// On the meta device the routing is unknown: all experts are assumed to have equally many rows.
RowExchange agree_on_rows(ExecutionContext& context, const ops::ExpertRows& rows,
                          const ExpertGroup& group);

/// An asynchronous exchange of rows. The constructor starts to send `rows` [sent, C]; arrive()
/// returns the received rows [received, C]. The gradient is sent in the opposite direction: the
/// backward step of arrive() starts its exchange, that of the constructor completes it.
class MovingRows {
 public:
  MovingRows(Graph& graph, const Var& rows, const ExpertGroup& group,
             std::shared_ptr<const RowExchange> exchange);
  /// Call once. Makes the current stream wait for the received rows.
  Var arrive();

 private:
  struct Journey;
  Graph& graph_;
  std::shared_ptr<Journey> journey_;
};

/// Returns rows [first, first + count) of x as a view. The gradient of the other rows is zero.
Var slice_rows(Graph& graph, const Var& x, std::int64_t first, std::int64_t count);
/// Returns [rows, C] with x at rows [first, ..) and zeros elsewhere.
Var place_rows(Graph& graph, const Var& x, std::int64_t first, std::int64_t rows);

}  // namespace sortie::trainer
