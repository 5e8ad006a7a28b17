#include "common/model/tape.h"

#include <algorithm>

#include "common/base/size_class.h"

namespace sortie::model {

std::shared_ptr<void> Meter::allocate(std::int64_t bytes) {
  const auto size = static_cast<std::int64_t>(size_class(static_cast<std::size_t>(bytes)));
  state_->in_use += size;
  state_->peak = std::max(state_->peak, state_->in_use);
  Blocks& blocks = state_->by_size[size];
  blocks.most = std::max(blocks.most, ++blocks.now);
  return {state_.get(), [state = state_, size](void*) {
            state->in_use -= size;
            --state->by_size[size].now;
          }};
}

std::int64_t Meter::reserved() const {
  std::int64_t sum = 0;
  for (const auto& [size, blocks] : state_->by_size) sum += size * blocks.most;
  return sum;
}

void Tape::use(std::span<const ParameterInfo> parameters) {
  for (const ParameterInfo& parameter : parameters) flows_ = flows_ || parameter.trained;
  if (flow_ == nullptr || !flows_) return;
  for (const ParameterInfo& parameter : parameters) flow_->products.insert(&parameter);
}

void Tape::add_grad(SizedGrad& into, Sized grad) {
  if (!grad.defined()) return;
  if (!into.tensor.defined()) {
    into.tensor = std::move(grad);
    return;
  }
  if (into.tensor.owners() == 1) return;  // summed in place
  Sized sum = like(grad);
  into.tensor = std::move(sum);
}

void Tape::backward(std::vector<std::pair<Value, Sized>> seeds) {
  for (auto& [value, grad] : seeds) add_grad(*value.grad, std::move(grad));
  seeds.clear();
  while (!steps_.empty()) {
    steps_.back()();
    steps_.pop_back();
  }
}

std::vector<Value> recompute(
    Tape& tape, const std::vector<Value>& inputs,
    std::function<std::vector<Value>(Tape&, const std::vector<Value>&)> segment) {
  if (!tape.recording()) return segment(tape, inputs);
  const auto detach = [](Tape& into, const std::vector<Sized>& tensors) {
    std::vector<Value> values;
    for (const Sized& tensor : tensors) values.push_back(into.value(tensor));
    return values;
  };
  std::vector<Sized> kept;
  std::vector<std::shared_ptr<SizedGrad>> input_grads, output_grads;
  for (const Value& input : inputs) {
    kept.push_back(input.data);
    input_grads.push_back(input.grad);
  }
  Tape forward(tape.meter(), tape.machine(), Tape::Mode::reserve);
  const bool flows = tape.flows();
  forward.set_flows(flows);
  std::vector<Value> outputs = segment(forward, detach(forward, kept));
  tape.set_flows(forward.flows());
  for (const Value& output : outputs) output_grads.push_back(output.grad);

  tape.record([&tape, flows, kept, input_grads, output_grads, segment, detach] {
    Tape replay(tape.meter(), tape.machine(), Tape::Mode::record);
    replay.set_flows(flows);
    std::vector<Value> again = detach(replay, kept);
    std::vector<Value> results = segment(replay, again);
    std::vector<std::pair<Value, Sized>> seeds;
    for (std::size_t i = 0; i < results.size(); ++i)
      seeds.emplace_back(results[i], std::move(output_grads[i]->tensor));
    results.clear();
    replay.backward(std::move(seeds));
    for (std::size_t i = 0; i < again.size(); ++i)
      if (input_grads[i]) tape.add_grad(*input_grads[i], std::move(again[i].grad->tensor));
  });
  return outputs;
}

}  // namespace sortie::model
