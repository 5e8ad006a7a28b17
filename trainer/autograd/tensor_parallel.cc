#include "trainer/autograd/tensor_parallel.h"

#include <algorithm>

#include "trainer/autograd/tensor_exchange.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"

namespace sortie::trainer {
namespace {

/// Returns the gradient as a dense, solely owned tensor that may be overwritten; copies if
/// necessary.
Tensor own_copy(ExecutionContext& context, Tensor grad) {
  if (grad.sole_owner() && grad.dense()) return grad;
  Tensor copy = context.empty(grad.dtype(), grad.shape());
  ops::copy(context, grad, copy);
  return copy;
}

}  // namespace

Var sum_gradient(Graph& graph, const Var& x, const TensorGroup* group) {
  if (group == nullptr) return x;
  ExecutionContext& context = graph.context();
  Var out = graph.value(x.data);
  graph.record([&graph, &context, group, x_grad = x.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    dy = own_copy(context, std::move(dy));
    const auto sum = begin_sum(context, *group, dy);
    // With sequence parallelism only small tensors are summed.
    if (!group->sequence) compute_beside(graph, *group, sum, Beside::all);
    sum->wait_on(context);
    graph.add_grad(*x_grad, std::move(dy));
  });
  return out;
}

Var enter(Graph& graph, const Var& x, const TensorGroup* group) {
  if (!shares_rows(group)) return sum_gradient(graph, x, group);
  ExecutionContext& context = graph.context();
  Var out = graph.value(begin_gather(context, *group, x.data).land(context));
  record_enter(graph, x, out, group);
  return out;
}

Var leave(Graph& graph, const Var& x, const TensorGroup* group) {
  if (group == nullptr) return x;
  ExecutionContext& context = graph.context();
  if (!group->sequence) {
    begin_sum(context, *group, x.data)->wait_on(context);
    return x;  // every rank already has the gradient of its part
  }
  Var out = graph.value(begin_scatter(context, *group, x.data).land(context));
  record_leave(graph, x, out, group);
  return out;
}

Var gather_rows(Graph& graph, const Var& x, const TensorGroup* group) {
  if (!shares_rows(group)) return x;
  ExecutionContext& context = graph.context();
  Var out = graph.value(begin_gather(context, *group, x.data).land(context));
  graph.record([&graph, group, x_grad = x.grad, grad = out.grad] {
    const Tensor dy = std::move(grad->tensor);
    if (dy.defined()) graph.add_grad(*x_grad, own_rows(dy, group));
  });
  return out;
}

Tensor own_rows(const Tensor& whole, const TensorGroup* group) {
  if (!shares_rows(group)) return whole;
  const std::int64_t rows = whole.size(0) / group->size();
  return whole.slice(0, rows * group->rank(), rows);
}

Var embedding(Graph& graph, const Tensor& tokens, Parameter& table, const TensorGroup* group) {
  if (group == nullptr) return embedding(graph, tokens, table);
  const std::int64_t rows = table.shape()[0];
  const ops::TablePart part{rows * group->rank(), table.spec().shape[0]};
  return leave(graph, embedding(graph, tokens, table, part), group);
}

void head_loss(Graph& graph, const Var& h, Parameter& head, const Tensor& targets,
               const ops::CrossEntropySpec& whole, Tensor& loss, const TensorGroup* group) {
  if (group == nullptr) return head_loss(graph, h, head, targets, whole, loss);
  ExecutionContext& context = graph.context();
  ops::CrossEntropySpec spec = whole;
  spec.first_token = head.shape()[0] * group->rank();
  Tensor dh, dw, none;
  if (graph.recording()) {
    dh = context.empty(h.data.dtype(), h.data.shape());
    dw = head.grad();
  }
  const std::int64_t rows = h.data.size(0), most = ops::cross_entropy_rows();
  for (std::int64_t begin = 0; begin < rows; begin += most) {
    const std::int64_t count = std::min(most, rows - begin);
    const Tensor some = h.data.slice(0, begin, count), wanted = targets.slice(0, begin, count);
    const ops::CrossEntropyPart part = ops::begin_cross_entropy(
        context, some, head.packed(), wanted, spec, /*with_gradients=*/dh.defined());
    const Tensor stats = begin_gather(context, *group, part.stats).land(context);
    Tensor gradient = dh.defined() ? dh.slice(0, begin, count) : none;
    ops::finish_cross_entropy(context, some, head.packed(), wanted, spec, part, stats, gradient, dw,
                              loss);
  }
  if (!graph.recording()) return;
  graph.use(head);
  graph.record([&graph, &head, dh, h_grad = h.grad]() mutable {
    graph.add_grad(*h_grad, std::move(dh));
    head.use_done();
  });
}

namespace {

/// The positions of a rank's rows in their samples. The tensor-parallel group shares rows of
/// consecutive samples, `tokens` rows of each; this rank's rows begin at row `first` of these.
struct RowPlaces {
  std::int64_t first, tokens;
  const ContextGroup* sharers;
  /// Rows that are consecutive in the whole sample: with `sharers`, those of one chunk.
  std::int64_t run() const { return sharers == nullptr ? tokens : tokens / 2; }
  /// The position in the whole sample of the sample's row number `token` here.
  std::int64_t place_of(std::int64_t token) const {
    if (sharers == nullptr) return token;
    return sharers->chunk(static_cast<int>(token / run())) * run() + token % run();
  }
};

void drop_rows(ExecutionContext& context, const ops::Dropout& dropout, const RowPlaces& places,
               const Tensor& x, Tensor& y) {
  for (std::int64_t row = 0; row < x.size(0);) {
    const std::int64_t sample = (places.first + row) / places.tokens;
    const std::int64_t token = (places.first + row) % places.tokens;
    const std::int64_t rows = std::min(x.size(0) - row, places.run() - token % places.run());
    ops::Dropout part = dropout;
    part.first_sample += sample;
    part.first_element = places.place_of(token) * x.size(1);
    Tensor to = y.slice(0, row, rows);
    ops::dropout(context, part, 1, x.slice(0, row, rows), to);
    row += rows;
  }
}

}  // namespace

Var dropout(Graph& graph, const Var& x, const ops::Dropout& dropout, std::int64_t samples,
            const TensorGroup* group, const ContextGroup* sharers) {
  const bool shares = shares_rows(group);
  if (!dropout || (!shares && sharers == nullptr))
    return trainer::dropout(graph, x, dropout, samples);
  ExecutionContext& context = graph.context();
  const std::int64_t own = x.data.size(0), all = shares ? own * group->size() : own;
  const RowPlaces places{shares ? own * group->rank() : 0, all / samples, sharers};
  Tensor y = context.empty(x.data.dtype(), x.data.shape());
  drop_rows(context, dropout, places, x.data, y);
  Var out = graph.value(y);
  graph.record([&graph, &context, dropout, places, x_grad = x.grad, grad = out.grad] {
    const Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dx = context.empty(dy.dtype(), dy.shape());
    drop_rows(context, dropout, places, dy, dx);
    graph.add_grad(*x_grad, std::move(dx));
  });
  return out;
}

}  // namespace sortie::trainer
