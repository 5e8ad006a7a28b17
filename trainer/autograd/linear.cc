// Linear layers on the tape, including their low-rank updates.
#include "trainer/autograd/fp8_linear.h"
#include "trainer/autograd/functions.h"
#include "trainer/ops/scale.h"

namespace sortie::trainer {

void record_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                   LinearOptions options, const Var& out) {
  ExecutionContext& context = graph.context();
  graph.use(weight);
  if (bias) graph.use(*bias);
  graph.record([&graph, &context, &weight, bias, options, x, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (dy.defined()) {
      Tensor dx = context.empty(x.data.dtype(), x.data.shape());
      ops::linear_backward_data(context, dy, weight.packed(), dx);
      graph.add_grad(*x.grad, std::move(dx));
    }
    const bool trains = dy.defined() && (weight.trained() || (bias && bias->trained()));
    auto settle = [&context, &weight, bias, trains, x = x.data, dy = std::move(dy)] {
      Tensor none;
      if (trains)
        weight.add_product([&](Tensor& dw, ops::WriteMode mode) {
          ops::linear_backward_weight(context, dy, x, dw, bias ? bias->grad() : none, mode);
        });
      if (bias) bias->use_done();
      weight.use_done();
    };
    graph.settle_weights(trains, options.beside_exchanges, std::move(settle));
  });
}

namespace {

Var plain_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                 LinearOptions options) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(x.data.dtype(), {x.data.size(0), weight.weight().size(0)});
  ops::linear_forward(context, x.data, weight.packed(),
                      bias && options.adds_bias ? bias->weight() : Tensor(), y);
  graph.observe(weight, y);
  Var out = graph.value(y);
  record_linear(graph, x, weight, bias, options, out);
  return out;
}

}  // namespace

Var linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias, LinearOptions options) {
  const Var out = multiplies_in_fp8(x, weight) ? fp8_linear(graph, x, weight, bias, options)
                                               : plain_linear(graph, x, weight, bias, options);
  if (!weight.low_rank()) return out;
  const LowRank& low = *weight.low_rank();
  const Var inner = scaled(graph, linear(graph, x, *low.down, nullptr), low.scale);
  return add(graph, out, linear(graph, inner, *low.up, nullptr));
}

Var scaled(Graph& graph, const Var& x, float factor) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(x.data.dtype(), x.data.shape());
  ops::scale(context, x.data, factor, y);
  Var out = graph.value(y);
  graph.record([&graph, &context, factor, x_grad = x.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dx = context.empty(dy.dtype(), dy.shape());
    ops::scale(context, dy, factor, dx);
    graph.add_grad(*x_grad, std::move(dx));
  });
  return out;
}

}  // namespace sortie::trainer
