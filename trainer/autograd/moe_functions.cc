#include "trainer/autograd/moe_functions.h"

#include <algorithm>

#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/latent.h"
#include "trainer/parallel/context_group.h"

namespace sortie::trainer {
namespace {

/// Returns x as f32: x itself or a copy.
Tensor widened(ExecutionContext& context, const Tensor& x) {
  if (x.dtype() == DType::f32) return x;
  Tensor wide = context.empty(DType::f32, x.shape());
  ops::convert(context, x, wide);
  return wide;
}

/// Returns `sums`, f64 [count]; allocates it as zeros on first use.
Tensor& started(ExecutionContext& context, Tensor& sums, std::int64_t count) {
  if (!sums.defined()) sums = context.zeros(DType::f64, {count});
  return sums;
}

/// f64 [2, sequences, E]: how often each expert was chosen, on all ranks, by the tokens of a
/// sequence before each of this rank's two chunks of it. Collective.
Tensor chosen_before(ExecutionContext& context, const Tensor& chosen, std::int64_t experts,
                     std::int64_t sequences, const ContextGroup& group) {
  Tensor counts = context.empty(DType::f32, {2 * sequences, experts});
  ops::count_choices_of_parts(context, chosen, counts);
  Tensor all[2];  // [ranks, sequences * E] of the earlier and the later chunks
  Communicator::Handle handles[2];
  for (const int half : {0, 1}) {
    Tensor mine = context.empty(DType::f32, {sequences, experts});
    ops::copy(context, counts.view({sequences, 2 * experts}).slice(1, half * experts, experts),
              mine);
    all[half] = context.empty(DType::f32, {group.size(), sequences * experts});
    handles[half] = group.communicator.all_gather_async(mine, all[half], context.record());
  }
  for (Communicator::Handle& handle : handles) handle->wait_on(context);
  // Before the earlier chunk are the earlier chunks of lower ranks; before the later one are all
  // earlier chunks, and the later chunks of higher ranks.
  Tensor before = context.zeros(DType::f64, {2, sequences, experts});
  const auto add = [&](int to, const Tensor& chunks, std::int64_t first, std::int64_t count) {
    Tensor sums = before.slice(0, to, 1);
    if (count > 0) ops::column_sums(context, chunks.slice(0, first, count), sums);
  };
  add(0, all[0], 0, group.rank());
  add(1, all[0], 0, group.size());
  add(1, all[1], group.rank() + 1, group.size() - 1 - group.rank());
  return before;
}

/// Limits the choices of `routed` to `capacity` per expert and sequence. With a group, each rank
/// has two chunks of a sequence.
void limit(ExecutionContext& context, std::int64_t experts, std::int64_t sequences,
           std::int64_t capacity, const ContextGroup* group, Tensor dropped, Routed& routed) {
  ops::ChoiceLimit limit{.capacity = capacity, .sequences = sequences};
  if (group != nullptr)
    limit.before = chosen_before(context, routed.experts, experts, sequences, *group);
  Tensor kept = context.empty(DType::i32, routed.experts.shape());
  ops::limit_choices(context, routed.experts, experts, limit, kept, dropped);
  routed.experts = kept;
  routed.most = experts * sequences * std::min(capacity, routed.experts.elements());
}

}  // namespace

Var f32_linear(Graph& graph, const Var& x, Parameter& weight) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(DType::f32, {x.data.size(0), weight.weight().size(0)});
  ops::linear_forward(context, widened(context, x.data), weight.packed(), {}, y);
  graph.observe(weight, y);
  Var out = graph.value(y);
  graph.use(weight);
  graph.record([&graph, &context, &weight, x, grad = out.grad] {
    if (Tensor dy = std::move(grad->tensor); dy.defined()) {
      Tensor none, wide = context.empty(DType::f32, x.data.shape());
      if (weight.trained())
        ops::linear_backward_weight(context, dy, widened(context, x.data), weight.grad(), none);
      ops::linear_backward_data(context, dy, weight.packed(), wide);
      Tensor dx = wide;
      if (x.data.dtype() != DType::f32) {
        dx = context.empty(x.data.dtype(), x.data.shape());
        ops::convert(context, wide, dx);
      }
      wide = {};
      graph.add_grad(*x.grad, std::move(dx));
    }
    weight.use_done();
  });
  return out;
}

Routed route(Graph& graph, const Var& logits, const ops::RouterSpec& spec, const Tensor& bias,
             const RouterLosses& losses, std::int64_t sequences, std::int64_t capacity,
             std::int64_t index, RouterPass& pass) {
  ExecutionContext& context = graph.context();
  const std::int64_t rows = logits.data.size(0);
  const auto place = static_cast<std::size_t>(index);
  Tensor scores = context.empty(DType::f32, logits.data.shape());
  Routed routed{graph.value(context.empty(DType::f32, {rows, spec.top_k})),
                context.empty(DType::i32, {rows, spec.top_k})};
  const Tensor chosen = routed.experts;
  SORTIE_CHECK(pass.replay.empty() || place < pass.replay.size(), "no selection for mixture {}",
               index);
  ops::route_forward(context, spec, logits.data, bias,
                     pass.replay.empty() ? Tensor() : pass.replay[place], scores, routed.experts,
                     routed.weights.data);
  // counts: how often an expert is among the top k by score alone, the factors of the scores in the
  // losses. The losses are linear in the scores, so each rank computes its own part of them.
  const double parts = pass.group == nullptr ? 1.0 : pass.group->size();
  const double sequence_coefficient = losses.sequence / (parts * parts);  // two means over tokens
  Tensor counts;
  if (losses.sequence > 0.0 || losses.load > 0.0) {
    counts = context.empty(DType::f32, {sequences, spec.experts});
    ops::count_top_experts(context, scores, spec.top_k, counts);
    if (pass.group != nullptr)
      pass.group->communicator.all_reduce_async(counts, ReduceOp::sum, context.record())
          ->wait_on(context);
  }
  const bool first = graph.mode() == Graph::Mode::record || graph.mode() == Graph::Mode::reserve;
  if (capacity > 0)
    limit(context, spec.experts, sequences, capacity, pass.group,
          first ? started(context, pass.dropped, 1) : context.zeros(DType::f64, {1}), routed);
  if (first) {
    pass.choices.resize(std::max(pass.choices.size(), place + 1));
    pass.choices[place] = chosen;
    pass.counts.resize(pass.choices.size());
    pass.counts[place] = context.empty(DType::f64, {spec.experts});
    ops::count_choices(context, chosen, pass.counts[place]);
    if (losses.sequence > 0.0)
      ops::sequence_balance(context, scores, counts, spec.top_k, sequence_coefficient,
                            started(context, pass.sequence_loss, 1));
    if (losses.load > 0.0) {
      ops::column_sums(context, counts, started(context, pass.assigned, spec.experts));
      ops::column_sums(context, scores, started(context, pass.scores, spec.experts));
      pass.rows += static_cast<double>(rows) * parts;
    }
  }
  graph.record([&graph, &context, &pass, spec, losses, sequence_coefficient, scores, counts, chosen,
                weights_grad = routed.weights.grad, logits] {
    Tensor dweights = std::move(weights_grad->tensor);
    Tensor dscores;
    if (counts.defined()) {
      dscores = context.zeros(DType::f32, scores.shape());
      const auto scale = [&pass](double coefficient) {
        return static_cast<float>(coefficient * static_cast<double>(pass.loss_scale));
      };
      if (losses.sequence > 0.0)
        ops::sequence_balance_backward(context, scores, counts, spec.top_k,
                                       scale(sequence_coefficient), dscores);
      if (losses.load > 0.0)
        ops::load_balance_backward(context, pass.assigned, pass.rows, scale(losses.load), dscores);
    }
    if (!dweights.defined() && !dscores.defined()) return;
    Tensor dlogits = context.empty(DType::f32, scores.shape());
    ops::route_backward(context, spec, scores, chosen, dweights, dscores, dlogits);
    graph.add_grad(*logits.grad, std::move(dlogits));
  });
  return routed;
}

void finish_routing(ExecutionContext& context, double load_coefficient, RouterPass& pass) {
  if (load_coefficient > 0.0 && pass.rows > 0.0)
    ops::load_balance(context, pass.assigned, pass.scores, pass.rows, load_coefficient,
                      started(context, pass.load_loss, 1));
}

Var concat(Graph& graph, const Var& a, const Var& b) {
  ExecutionContext& context = graph.context();
  const std::int64_t first = a.data.size(1), second = b.data.size(1);
  Tensor y = context.empty(a.data.dtype(), {a.data.size(0), first + second});
  ops::concat_columns(context, a.data, b.data, y);
  Var out = graph.value(y);
  graph.record([&graph, first, second, a_grad = a.grad, b_grad = b.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    graph.add_grad(*a_grad, dy.slice(1, 0, first));
    graph.add_grad(*b_grad, dy.slice(1, first, second));
  });
  return out;
}

std::pair<Var, Var> split(Graph& graph, const Var& x, std::int64_t first) {
  ExecutionContext& context = graph.context();
  const Tensor& all = x.data;
  Var a = graph.value(all.slice(1, 0, first));
  Var b = graph.value(all.slice(1, first, all.size(1) - first));
  graph.record([&graph, &context, shape = all.shape(), dtype = all.dtype(), x_grad = x.grad,
                a_shape = a.data.shape(), b_shape = b.data.shape(), a_grad = a.grad,
                b_grad = b.grad] {
    Tensor da = std::move(a_grad->tensor), db = std::move(b_grad->tensor);
    if (!da.defined() && !db.defined()) return;
    if (!da.defined()) da = context.zeros(dtype, a_shape);
    if (!db.defined()) db = context.zeros(dtype, b_shape);
    Tensor dx = context.empty(dtype, shape);
    ops::concat_columns(context, da, db, dx);
    graph.add_grad(*x_grad, std::move(dx));
  });
  return {a, b};
}

}  // namespace sortie::trainer
