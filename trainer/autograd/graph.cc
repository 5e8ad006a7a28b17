#include "trainer/autograd/graph.h"

#include "trainer/ops/elementwise.h"

namespace sortie::trainer {

void Graph::add_grad(Grad& into, Tensor grad) {
  if (!grad.defined()) return;
  if (!into.tensor.defined()) {
    into.tensor = std::move(grad);
    return;
  }
  if (into.tensor.sole_owner()) {
    ops::add(context_, into.tensor, grad, into.tensor);
    return;
  }
  Tensor sum = context_.empty(grad.dtype(), grad.shape());
  ops::add(context_, into.tensor, grad, sum);
  into.tensor = std::move(sum);
}

ops::Fp8Matrix Graph::in_fp8(const Var& value, ops::Fp8Forms forms, const ops::Fp8Amax& amax) {
  const bool there = newest_cast_.of == value.grad &&
                     (!forms.rows || newest_cast_.matrix.rows.defined()) &&
                     (!forms.columns || newest_cast_.matrix.columns.defined());
  if (!there) {
    newest_cast_ = {};  // its memory is free for the next one
    newest_cast_ = {value.grad,
                    ops::to_fp8(context_, value.data, ops::Fp8Format::e4m3, forms, amax)};
  }
  return newest_cast_.matrix;
}

void Graph::backward(std::vector<std::pair<Var, Tensor>> seeds,
                     const std::function<void()>& inputs_done) {
  SORTIE_CHECK(recording(), "backward of a graph that records nothing");
  newest_cast_ = {};
  for (auto& [var, grad] : seeds) add_grad(*var.grad, std::move(grad));
  seeds.clear();
  while (!steps_.empty()) {
    steps_.back()();
    steps_.pop_back();  // frees what the step had saved
    context_.poll();
  }
  if (inputs_done) inputs_done();
  do_postponed(postponed_.size());
}

void Graph::do_postponed(std::size_t count) {
  for (; count > 0; --count) {
    const std::function<void()> work = std::move(postponed_.front());
    postponed_.pop_front();
    work();
    context_.poll();
  }
}

std::vector<Var> recompute(
    Graph& graph, const std::vector<Var>& inputs,
    std::function<std::vector<Var>(Graph&, const std::vector<Var>&)> segment) {
  if (!graph.recording()) return segment(graph, inputs);

  const auto detach = [](Graph& into, const std::vector<Tensor>& tensors) {
    std::vector<Var> values;
    for (const Tensor& tensor : tensors) values.push_back(into.value(tensor));
    return values;
  };
  std::vector<Tensor> kept;
  std::vector<std::shared_ptr<Grad>> input_grads, output_grads;
  for (const Var& input : inputs) {
    kept.push_back(input.data);
    input_grads.push_back(input.grad);
  }
  // A segment inside a replayed segment has its uses counted already.
  const bool counted = graph.mode() == Graph::Mode::replay;
  Graph forward(graph.context(), counted ? Graph::Mode::inference : Graph::Mode::reserve);
  const bool flows = graph.flows();
  forward.set_flows(flows);
  std::vector<Var> outputs = segment(forward, detach(forward, kept));
  graph.set_flows(forward.flows());
  for (const Var& output : outputs) output_grads.push_back(output.grad);

  graph.record([&graph, flows, kept, input_grads, output_grads, segment, detach] {
    Graph replay(graph.context(), Graph::Mode::replay);
    replay.set_flows(flows);
    std::vector<Var> again = detach(replay, kept);
    const std::int64_t flop = graph.context().flop();
    std::vector<Var> results = segment(replay, again);
    graph.context().count_flop(flop - graph.context().flop());  // counted the first time
    std::vector<std::pair<Var, Tensor>> seeds;
    for (std::size_t i = 0; i < results.size(); ++i)
      seeds.emplace_back(results[i], std::move(output_grads[i]->tensor));
    results.clear();
    replay.backward(std::move(seeds));
    for (std::size_t i = 0; i < again.size(); ++i)
      if (input_grads[i]) graph.add_grad(*input_grads[i], std::move(again[i].grad->tensor));
  });
  return outputs;
}

}  // namespace sortie::trainer
