// The experts of a mixture on the tape: all of them on this rank, or distributed over a group.
#include <algorithm>
#include <memory>

#include "trainer/autograd/expert_parallel.h"
#include "trainer/autograd/moe_functions.h"
#include "trainer/ops/elementwise.h"

namespace sortie::trainer {
namespace {

void use(Graph& graph, std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) graph.use(*parameter);
}
void use_done(std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) parameter->use_done();
}

/// Sorted rows of the width `cols`, in memory whose size does not depend on the routing.
Tensor sorted_rows(ExecutionContext& context, const ops::ExpertRows& rows, DType dtype,
                   std::int64_t cols) {
  return context.empty(dtype, {rows.capacity, cols});
}

std::vector<const ops::PackedWeight*> packed(std::span<Parameter* const> parameters) {
  std::vector<const ops::PackedWeight*> weights;
  for (const Parameter* parameter : parameters) weights.push_back(&parameter->packed());
  return weights;
}

using SharedRows = std::shared_ptr<const ops::ExpertRows>;

Var dispatch(Graph& graph, const Var& x, const SharedRows& rows) {
  ExecutionContext& context = graph.context();
  Tensor sorted = sorted_rows(context, *rows, x.data.dtype(), x.data.size(1));
  ops::dispatch_forward(context, *rows, x.data, sorted);
  Var out = graph.value(sorted);
  graph.record([&graph, &context, rows, shape = x.data.shape(), x_grad = x.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dx = context.empty(dy.dtype(), shape);
    ops::dispatch_backward(context, *rows, dy, dx);
    graph.add_grad(*x_grad, std::move(dx));
  });
  return out;
}

/// When the gradients of weights are computed.
enum class WeightGradients : std::uint8_t { at_once, beside_exchanges };

Var grouped_linear(Graph& graph, const Var& x, const SharedRows& rows,
                   std::span<Parameter* const> weights, WeightGradients when) {
  ExecutionContext& context = graph.context();
  Tensor y = sorted_rows(context, *rows, x.data.dtype(), weights[0]->weight().size(0));
  ops::grouped_linear_forward(context, *rows, x.data, packed(weights), y);
  Var out = graph.value(y);
  use(graph, weights);
  graph.record([&graph, &context, rows, weights, when, x, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return use_done(weights);
    Tensor dx = sorted_rows(context, *rows, x.data.dtype(), x.data.size(1));
    ops::grouped_linear_backward_data(context, *rows, dy, packed(weights), dx);
    graph.add_grad(*x.grad, std::move(dx));
    auto settle = [&context, rows, weights, x = x.data, dy = std::move(dy)] {
      std::vector<Tensor> dw;
      for (Parameter* weight : weights) dw.push_back(weight->grad());
      if (std::ranges::any_of(dw, &Tensor::defined))
        ops::grouped_linear_backward_weight(context, *rows, dy, x, dw);
      use_done(weights);
    };
    const bool trains = std::ranges::any_of(weights, &Parameter::trained);
    graph.settle_weights(trains, when == WeightGradients::beside_exchanges, std::move(settle));
  });
  return out;
}

Var sorted_swiglu(Graph& graph, const Var& gate_up, const SharedRows& rows) {
  ExecutionContext& context = graph.context();
  Tensor y = sorted_rows(context, *rows, gate_up.data.dtype(), gate_up.data.size(1) / 2);
  ops::swiglu_forward(context, gate_up.data, rows->row_count(), y);
  Var out = graph.value(y);
  graph.record([&graph, &context, rows, gate_up, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dx = sorted_rows(context, *rows, gate_up.data.dtype(), gate_up.data.size(1));
    ops::swiglu_backward(context, dy, gate_up.data, rows->row_count(), dx);
    graph.add_grad(*gate_up.grad, std::move(dx));
  });
  return out;
}

Var combine(Graph& graph, const Var& sorted, const Var& weights, const SharedRows& rows) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(sorted.data.dtype(), {rows->tokens, sorted.data.size(1)});
  ops::combine_forward(context, *rows, sorted.data, weights.data, y);
  Var out = graph.value(y);
  graph.record([&graph, &context, rows, sorted, weights, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dsorted = sorted_rows(context, *rows, sorted.data.dtype(), sorted.data.size(1));
    Tensor dweights = context.empty(DType::f32, weights.data.shape());
    ops::combine_backward(context, *rows, dy, sorted.data, weights.data, dsorted, dweights);
    graph.add_grad(*sorted.grad, std::move(dsorted));
    graph.add_grad(*weights.grad, std::move(dweights));
  });
  return out;
}

/// Restores the order of the rows before sorting; each row has exactly one place.
Var unsort(Graph& graph, const Var& sorted, const SharedRows& rows) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(sorted.data.dtype(), {rows->tokens, sorted.data.size(1)});
  ops::dispatch_backward(context, *rows, sorted.data, y);
  Var out = graph.value(y);
  graph.record([&graph, &context, rows, sorted_grad = sorted.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dsorted = sorted_rows(context, *rows, dy.dtype(), dy.size(1));
    ops::dispatch_forward(context, *rows, dy, dsorted);
    graph.add_grad(*sorted_grad, std::move(dsorted));
  });
  return out;
}

/// down_e(silu(gate_e x) * up_e x) of sorted rows.
Var products(Graph& graph, const Var& sorted, const SharedRows& rows,
             std::span<Parameter* const> gate_up, std::span<Parameter* const> down,
             WeightGradients when) {
  const Var inner = grouped_linear(graph, sorted, rows, gate_up, when);
  return grouped_linear(graph, sorted_swiglu(graph, inner, rows), rows, down, when);
}

}  // namespace

Var experts(Graph& graph, const Var& x, const Routed& routed, std::span<Parameter* const> gate_up,
            std::span<Parameter* const> down, bool beside_exchanges) {
  const auto rows = std::make_shared<const ops::ExpertRows>(ops::sort_by_expert(
      graph.context(), routed.experts, static_cast<std::int64_t>(gate_up.size()),
      ops::kExpertRowUnit, routed.most));
  const Var out =
      products(graph, dispatch(graph, x, rows), rows, gate_up, down,
               beside_exchanges ? WeightGradients::beside_exchanges : WeightGradients::at_once);
  return combine(graph, out, routed.weights, rows);
}

Var experts(Graph& graph, const Var& x, const Routed& routed, std::span<Parameter* const> gate_up,
            std::span<Parameter* const> down, const ExpertGroup& group,
            const std::function<void()>& meanwhile) {
  ExecutionContext& context = graph.context();
  const auto own = static_cast<std::int64_t>(gate_up.size());
  ops::ExpertRows chosen = ops::sort_by_expert(context, routed.experts, own * group.size(),
                                               /*unit=*/1, routed.most);
  const auto exchange = std::make_shared<const RowExchange>(agree_on_rows(context, chosen, group));
  chosen.capacity = exchange->sent;  // only the rows that exist are sent
  const auto sent = std::make_shared<const ops::ExpertRows>(std::move(chosen));
  MovingRows moving(graph, dispatch(graph, x, sent), group, exchange);
  if (meanwhile) meanwhile();
  const Var here = moving.arrive();
  const auto rows =
      std::make_shared<const ops::ExpertRows>(ops::sort_by_expert(context, exchange->experts, own));
  const Var out = products(graph, dispatch(graph, here, rows), rows, gate_up, down,
                           WeightGradients::beside_exchanges);
  const auto back = std::make_shared<const RowExchange>(exchange->reversed());
  const Var home = MovingRows(graph, unsort(graph, out, rows), group, back).arrive();
  return combine(graph, home, routed.weights, sent);
}

}  // namespace sortie::trainer
