// Rows between the ranks that share out the experts of a mixture, on the tape.
//
// Every rank of the group runs the same tape, so that all issue the same collectives in the same
// order, in the recomputation of a segment again. A rank that sends or gets no row takes part.
#pragma once

#include <vector>

#include "trainer/autograd/graph.h"
#include "trainer/ops/moe_experts.h"
#include "trainer/parallel/expert_group.h"

namespace sortie::trainer {

/// How many rows go from this rank to each, and come from each.
struct RowExchange {
  std::vector<std::int64_t> sends, receives;  // rows, by rank
  std::int64_t sent = 0, received = 0;        // of them all
  /// i32 [received, 1]: the expert of each row that comes, counted from this rank's first.
  Tensor experts;

  /// The way back.
  RowExchange reversed() const { return {receives, sends, received, sent, {}}; }
};

/// Tells the ranks of the group how many rows each gets for each of its experts. `rows` are sorted
/// by the experts of all ranks, without padding. The host waits for the routing. On the meta device
/// nobody knows it: all experts have the same number of rows.
RowExchange agree_on_rows(ExecutionContext& context, const ops::ExpertRows& rows,
                          const ExpertGroup& group);

/// Rows [sent, C] that go to other ranks from the constructor on, and those [received, C] that
/// arrive. The gradient goes the other way: from arrive()'s backward step to the constructor's.
class MovingRows {
 public:
  MovingRows(Graph& graph, const Var& rows, const ExpertGroup& group,
             std::shared_ptr<const RowExchange> exchange);
  /// Once. The stream goes on when they are there.
  Var arrive();

 private:
  struct Journey;
  Graph& graph_;
  std::shared_ptr<Journey> journey_;
};

/// Rows [first, first + count) of x as a view; the gradient of the others is zero.
Var slice_rows(Graph& graph, const Var& x, std::int64_t first, std::int64_t count);
/// x as rows [first, ..) of `rows`, the others zero.
Var place_rows(Graph& graph, const Var& x, std::int64_t first, std::int64_t rows);

}  // namespace sortie::trainer
