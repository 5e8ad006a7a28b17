#include "trainer/autograd/tensor_exchange.h"

#include <utility>

#include "trainer/ops/copy.h"

namespace sortie::trainer {

Communicator::Handle begin_sum(ExecutionContext& context, const TensorGroup& group,
                               const Tensor& values) {
  return group.communicator.all_reduce_async(values, ReduceOp::sum, context.record());
}

Tensor Arriving::land(ExecutionContext& context) {
  handle->wait_on(context);
  return std::move(values);
}

Arriving begin_gather(ExecutionContext& context, const TensorGroup& group, const Tensor& rows) {
  Tensor mine = rows;
  if (!mine.dense()) {
    mine = context.empty(rows.dtype(), rows.shape());
    ops::copy(context, rows, mine);
  }
  Tensor all = context.empty(rows.dtype(), {rows.size(0) * group.size(), rows.size(1)});
  auto handle = group.communicator.all_gather_async(mine, all, context.record());
  return {std::move(all), std::move(handle), std::move(mine)};
}

std::int64_t rows_of_rank(const Tensor& all, const TensorGroup& group) {
  SORTIE_CHECK(all.size(0) % group.size() == 0, "{} rows on {} ranks", all.size(0), group.size());
  return all.size(0) / group.size();
}

Arriving begin_scatter(ExecutionContext& context, const TensorGroup& group, const Tensor& all) {
  Tensor rows = context.empty(all.dtype(), {rows_of_rank(all, group), all.size(1)});
  auto handle = group.communicator.reduce_scatter_async(all, rows, ReduceOp::sum, context.record());
  return {std::move(rows), std::move(handle), {}};
}

void compute_beside(Graph& graph, const TensorGroup& group, const Communicator::Handle& exchange,
                    Beside part) {
  struct UnderWay {
    UnderWay(const TensorGroup& of, CollectiveHandle* handle) : group(of) {
      group.under_way = handle;
    }
    ~UnderWay() { group.under_way = nullptr; }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;
    const TensorGroup& group;
  } const under_way(group, exchange.get());
  const std::size_t count = graph.postponed();
  graph.do_postponed(part == Beside::all ? count : (count + 1) / 2);
}

namespace {

/// Records the backward step of out = exchange(x): starts the opposite exchange of the gradient and
/// runs postponed work during it.
void record_exchange(Graph& graph, const Var& x, const Var& out, const TensorGroup* group,
                     decltype(begin_scatter)* begin_back, Beside part) {
  graph.record([&graph, &context = graph.context(), group, begin_back, part, x_grad = x.grad,
                grad = out.grad] {
    const Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Arriving dx = begin_back(context, *group, dy);
    compute_beside(graph, *group, dx.handle, part);
    graph.add_grad(*x_grad, dx.land(context));
  });
}

}  // namespace

void record_enter(Graph& graph, const Var& x, const Var& entered, const TensorGroup* group) {
  record_exchange(graph, x, entered, group, begin_scatter, Beside::half);
}

void record_leave(Graph& graph, const Var& x, const Var& left, const TensorGroup* group) {
  record_exchange(graph, x, left, group, begin_gather, Beside::all);
}

}  // namespace sortie::trainer
