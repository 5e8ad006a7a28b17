#include "trainer/autograd/fp8_linear.h"

#include "trainer/ops/fp8.h"

namespace sortie::trainer {

bool multiplies_in_fp8(const Var& x, const Parameter& weight) {
  return weight.in_fp8() && x.data.dtype() == DType::bf16 &&
         x.data.matrix().rows % ops::kFp8Unit == 0;
}

Var fp8_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
               LinearOptions options) {
  ExecutionContext& context = graph.context();
  // The gradient of the weight is a product along the rows of x.
  const bool keeps = graph.recording() && weight.trained();
  const Parameter::Fp8Amaxes& amaxes = weight.fp8_amaxes();
  ops::Fp8Amax of_x = amaxes.x;
  // Evaluation between steps must not influence the scales of later steps, so it does not record
  // the largest value of x. That of the weight is the same in either case.
  if (graph.mode() == Graph::Mode::inference) of_x.current = {};
  ops::Fp8Matrix in = graph.in_fp8(x, {.rows = true, .columns = keeps}, of_x);
  Tensor y = context.empty(DType::bf16, {x.data.size(0), weight.weight().size(0)});
  ops::multiply_fp8(
      context, in.by_rows(),
      ops::weight_to_fp8(context, weight.packed(), {.rows = true, .columns = false}, amaxes.weight)
          .by_rows(),
      bias && options.adds_bias ? bias->weight() : Tensor(), y);
  graph.observe(weight, y);
  Var out = graph.value(y);
  graph.use(weight);
  if (bias) graph.use(*bias);
  in.rows = {};
  if (!keeps) in = {};
  graph.record([&graph, &context, &weight, bias, options, in = std::move(in),
                x_shape = x.data.shape(), x_grad = x.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    ops::Fp8Matrix narrow;
    if (dy.defined()) {
      narrow =
          ops::to_fp8(context, dy, ops::Fp8Format::e5m2,
                      {.rows = true, .columns = weight.trained()}, weight.fp8_amaxes().gradient);
      Tensor dx = context.empty(DType::bf16, x_shape);
      ops::multiply_fp8(
          context, narrow.by_rows(),
          ops::weight_to_fp8(context, weight.packed(), {.rows = false, .columns = true},
                             weight.fp8_amaxes().weight)
              .by_columns(),
          Tensor(), dx);
      narrow.rows = {};
      graph.add_grad(*x_grad, std::move(dx));
    }
    const bool bias_trains = bias && bias->trained();
    const bool trains = dy.defined() && (weight.trained() || bias_trains);
    if (!bias_trains) dy = {};
    auto settle = [&context, &weight, bias, trains, in, narrow = std::move(narrow),
                   dy = std::move(dy)] {
      if (trains && weight.trained())
        weight.add_product([&](Tensor& dw, ops::WriteMode mode) {
          ops::weight_gradient_fp8(context, narrow.by_columns(), in.by_columns(), dw, mode);
        });
      if (trains && dy.defined()) ops::add_bias_gradient(context, dy, bias->grad());
      if (bias) bias->use_done();
      weight.use_done();
    };
    graph.settle_weights(trains, options.beside_exchanges, std::move(settle));
  });
  return out;
}

}  // namespace sortie::trainer
