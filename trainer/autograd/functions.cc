#include "trainer/autograd/functions.h"

#include "trainer/autograd/context_parallel.h"
#include "trainer/autograd/kv_cache.h"
#include "trainer/ops/elementwise.h"

namespace sortie::trainer {

Var embedding(Graph& graph, const Tensor& tokens, Parameter& table, const ops::TablePart& part) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(table.weight().dtype(), {tokens.elements(), table.weight().size(1)});
  ops::embedding_forward(context, tokens, table.weight(), y, part);
  graph.observe(table, y);
  Var out = graph.value(y);
  graph.use(table);
  graph.record([&context, &table, tokens, part, grad = out.grad] {
    if (grad->tensor.defined() && table.trained())
      ops::embedding_backward(context, tokens, grad->tensor, table.grad(), part);
    table.use_done();
  });
  return out;
}

ResidualNorm residual_norm(Graph& graph, const Var& residual, const Var& branch,
                           const NormParameters& norm) {
  ExecutionContext& context = graph.context();
  Tensor sum = branch ? context.empty(residual.data.dtype(), residual.data.shape()) : residual.data;
  Tensor y = context.empty(residual.data.dtype(), residual.data.shape());
  Tensor stats = context.empty(DType::f32, {residual.data.size(0), 2});
  ops::residual_norm_forward(context, norm.kind, residual.data, branch.data, norm.weight->weight(),
                             norm.bias ? norm.bias->weight() : Tensor(), norm.eps, sum, y, stats);
  graph.observe(*norm.weight, y);
  // Without a branch the residual passes through: the result is the same value.
  ResidualNorm out{branch ? graph.value(sum) : residual, graph.value(y)};
  graph.use(*norm.weight);
  if (norm.bias) graph.use(*norm.bias);
  graph.record([&graph, &context, norm, sum, stats, residual_grad = residual.grad,
                branch_grad = branch.grad, sum_grad = out.residual.grad, y_grad = out.normed.grad] {
    const bool passes_through = sum_grad == residual_grad;
    Tensor dsum = passes_through ? Tensor() : std::move(sum_grad->tensor);
    Tensor dx = std::move(dsum);
    if (Tensor dy = std::move(y_grad->tensor); dy.defined()) {
      const Tensor incoming = dx;
      // Two references now: `incoming` and `dx`. More mean that another value shares the gradient.
      if (!dx.defined() || dx.owners() > 2) dx = context.empty(sum.dtype(), sum.shape());
      Tensor none;
      ops::residual_norm_backward(context, norm.kind, dy, incoming, sum, norm.weight->weight(),
                                  stats, dx, norm.weight->grad(),
                                  norm.bias ? norm.bias->grad() : none);
    }
    if (branch_grad) graph.add_grad(*branch_grad, dx);
    graph.add_grad(*residual_grad, std::move(dx));
    if (norm.bias) norm.bias->use_done();
    norm.weight->use_done();
  });
  return out;
}

Var head_norm(Graph& graph, const Var& x, std::int64_t head_dim, const NormParameters& norm) {
  const Shape flat = x.data.shape(), heads{x.data.elements() / head_dim, head_dim};
  // The same value under another shape, forward and back.
  const Var in = graph.value(x.data.view(heads));
  graph.record([&graph, x_grad = x.grad, in_grad = in.grad, flat] {
    if (Tensor dx = std::move(in_grad->tensor); dx.defined())
      graph.add_grad(*x_grad, dx.view(flat));
  });
  const Var normed = residual_norm(graph, in, {}, norm).normed;
  Var out = graph.value(normed.data.view(flat));
  graph.record([&graph, normed_grad = normed.grad, out_grad = out.grad, heads] {
    if (Tensor dy = std::move(out_grad->tensor); dy.defined())
      graph.add_grad(*normed_grad, dy.view(heads));
  });
  return out;
}

namespace {

/// The q, k and v views of a [B*T, (H + 2 KV) D] buffer.
struct QkvViews {
  Tensor q, k, v;
  QkvViews(const Tensor& qkv, const AttentionShape& s) {
    const auto part = [&](std::int64_t first_head, std::int64_t heads) {
      return qkv.slice(1, first_head * s.head_dim, heads * s.head_dim)
          .view({s.batch, s.tokens, heads, s.head_dim});
    };
    q = part(0, s.heads);
    k = part(s.heads, s.kv_heads);
    v = part(s.heads + s.kv_heads, s.kv_heads);
  }
};

void turn(ExecutionContext& context, Tensor& x, const Rope& rope, bool inverse) {
  if (rope.table != nullptr) ops::rope(context, x, *rope.table, rope.positions, inverse);
}

}  // namespace

Var attention(Graph& graph, const Var& qkv, const AttentionShape& shape, const Rope& rope,
              const ops::AttentionMask& mask) {
  ExecutionContext& context = graph.context();
  QkvViews views(qkv.data, shape);
  turn(context, views.q, rope, false);
  turn(context, views.k, rope, false);
  Tensor out4 =
      context.empty(qkv.data.dtype(), {shape.batch, shape.tokens, shape.heads, shape.head_dim});
  const Shape flat{shape.batch * shape.tokens, shape.heads * shape.head_dim};
  if (KvCache* cache = graph.cache()) {
    cache->attend(context, views.q, views.k, views.v, mask, out4);
    return graph.value(out4.view(flat));
  }
  Tensor lse = context.empty(DType::f32, {shape.batch, shape.heads, shape.tokens});
  attend(context, shape.group, views.q, views.k, views.v, mask, out4, lse);
  Var out = graph.value(out4.view(flat));
  graph.record([&graph, &context, shape, rope, mask, qkv, out4, lse, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dqkv = context.empty(qkv.data.dtype(), qkv.data.shape());
    QkvViews saved(qkv.data, shape), gradient(dqkv, shape);
    attend_backward(context, shape.group, saved.q, saved.k, saved.v, out4, lse,
                    dy.view(out4.shape()), mask, gradient.q, gradient.k, gradient.v);
    turn(context, gradient.q, rope, true);
    turn(context, gradient.k, rope, true);
    graph.add_grad(*qkv.grad, std::move(dqkv));
  });
  return out;
}

Var attention(Graph& graph, const Var& q, const Var& k, const Var& v, const AttentionShape& s,
              const ops::AttentionMask& mask) {
  ExecutionContext& context = graph.context();
  const std::int64_t value_dim = s.value_dim != 0 ? s.value_dim : s.head_dim;
  const auto queries = [s](const Tensor& x) {
    return x.view({s.batch, s.tokens, s.heads, s.head_dim});
  };
  const auto keys = [s](const Tensor& x) {
    return x.view({s.batch, s.tokens, s.kv_heads, s.head_dim});
  };
  const auto values = [s, value_dim](const Tensor& x) {
    return x.view({s.batch, s.tokens, s.kv_heads, value_dim});
  };
  Tensor out4 = context.empty(q.data.dtype(), {s.batch, s.tokens, s.heads, value_dim});
  if (KvCache* cache = graph.cache()) {
    cache->attend(context, queries(q.data), keys(k.data), values(v.data), mask, out4);
    return graph.value(out4.view({s.batch * s.tokens, s.heads * value_dim}));
  }
  Tensor lse = context.empty(DType::f32, {s.batch, s.heads, s.tokens});
  attend(context, s.group, queries(q.data), keys(k.data), values(v.data), mask, out4, lse);
  Var out = graph.value(out4.view({s.batch * s.tokens, s.heads * value_dim}));
  graph.record([&graph, &context, group = s.group, queries, keys, values, mask, q, k, v, out4, lse,
                grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dq = context.empty(q.data.dtype(), q.data.shape());
    Tensor dk = context.empty(k.data.dtype(), k.data.shape());
    Tensor dv = context.empty(v.data.dtype(), v.data.shape());
    Tensor dq4 = queries(dq), dk4 = keys(dk), dv4 = values(dv);
    attend_backward(context, group, queries(q.data), keys(k.data), values(v.data), out4, lse,
                    dy.view(out4.shape()), mask, dq4, dk4, dv4);
    graph.add_grad(*q.grad, std::move(dq));
    graph.add_grad(*k.grad, std::move(dk));
    graph.add_grad(*v.grad, std::move(dv));
  });
  return out;
}

Var rope(Graph& graph, const Var& x, std::int64_t heads, const AttentionShape& s,
         const Rope& rope) {
  ExecutionContext& context = graph.context();
  const Shape shape{s.batch, s.tokens, heads, s.head_dim};
  Tensor turned = x.data.view(shape);
  turn(context, turned, rope, false);
  Var out = graph.value(x.data);
  graph.record([&graph, &context, shape, rope, x_grad = x.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    // In place if no other value shares the gradient.
    Tensor dx = dy;
    if (dy.owners() > 2) {
      dx = context.empty(dy.dtype(), dy.shape());
      ops::convert(context, dy, dx);
    }
    Tensor back = dx.view(shape);
    turn(context, back, rope, true);
    graph.add_grad(*x_grad, std::move(dx));
  });
  return out;
}

Var swiglu(Graph& graph, const Var& gate_up) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(gate_up.data.dtype(), {gate_up.data.size(0), gate_up.data.size(1) / 2});
  ops::swiglu_forward(context, gate_up.data, {}, y);
  Var out = graph.value(y);
  graph.record([&graph, &context, gate_up, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dx = context.empty(gate_up.data.dtype(), gate_up.data.shape());
    ops::swiglu_backward(context, dy, gate_up.data, {}, dx);
    graph.add_grad(*gate_up.grad, std::move(dx));
  });
  return out;
}

Var gelu(Graph& graph, const Var& x, ops::Gelu kind) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(x.data.dtype(), x.data.shape());
  ops::gelu_forward(context, kind, x.data, y);
  Var out = graph.value(y);
  graph.record([&graph, &context, kind, x, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dx = context.empty(x.data.dtype(), x.data.shape());
    ops::gelu_backward(context, kind, dy, x.data, dx);
    graph.add_grad(*x.grad, std::move(dx));
  });
  return out;
}

Var add(Graph& graph, const Var& a, const Var& b) {
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(a.data.dtype(), a.data.shape());
  ops::add(context, a.data, b.data, y);
  Var out = graph.value(y);
  graph.record([&graph, a_grad = a.grad, b_grad = b.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    graph.add_grad(*a_grad, dy);
    graph.add_grad(*b_grad, std::move(dy));
  });
  return out;
}

Var dropout(Graph& graph, const Var& x, const ops::Dropout& dropout, std::int64_t samples) {
  if (!dropout) return x;
  ExecutionContext& context = graph.context();
  Tensor y = context.empty(x.data.dtype(), x.data.shape());
  ops::dropout(context, dropout, samples, x.data, y);
  Var out = graph.value(y);
  graph.record([&graph, &context, dropout, samples, x_grad = x.grad, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dx = context.empty(dy.dtype(), dy.shape());
    ops::dropout(context, dropout, samples, dy, dx);
    graph.add_grad(*x_grad, std::move(dx));
  });
  return out;
}

void head_loss(Graph& graph, const Var& h, Parameter& head, const Tensor& targets,
               const ops::CrossEntropySpec& spec, Tensor& loss) {
  ExecutionContext& context = graph.context();
  Tensor dh, none;
  if (!graph.recording())
    return ops::linear_cross_entropy(context, h.data, head.packed(), targets, spec, dh, none, loss);
  dh = context.empty(h.data.dtype(), h.data.shape());
  head.add_product([&](Tensor& dw, ops::WriteMode mode) {
    ops::CrossEntropySpec of_mode = spec;
    of_mode.mode_of_dw = mode;
    ops::linear_cross_entropy(context, h.data, head.packed(), targets, of_mode, dh, dw, loss);
  });
  graph.use(head);
  graph.record([&graph, &head, dh, h_grad = h.grad]() mutable {
    graph.add_grad(*h_grad, std::move(dh));
    head.use_done();
  });
}

}  // namespace sortie::trainer
