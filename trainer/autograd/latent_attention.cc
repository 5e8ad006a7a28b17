#include "trainer/autograd/context_parallel.h"
#include "trainer/autograd/kv_cache.h"
#include "trainer/autograd/moe_functions.h"
#include "trainer/ops/latent.h"

namespace sortie::trainer {
namespace {

/// The parts of q [B*T, H (N + R)], kv [B*T, H (N + V)] and rope_key [B*T, R], as views.
struct LatentViews {
  Tensor q, q_rope, kv, values, rope_key;
  LatentViews(const Tensor& q2, const Tensor& kv2, const Tensor& key, const AttentionShape& s) {
    const std::int64_t turned = key.size(1), plain = s.head_dim - turned;
    q = q2.view({s.batch, s.tokens, s.heads, s.head_dim});
    q_rope = q.slice(3, plain, turned);
    kv = kv2.view({s.batch * s.tokens, s.heads, plain + s.value_dim});
    values =
        kv2.view({s.batch, s.tokens, s.heads, plain + s.value_dim}).slice(3, plain, s.value_dim);
    rope_key = key.view({s.batch, s.tokens, 1, turned});
  }
};

}  // namespace

Var latent_attention(Graph& graph, const Var& q, const Var& kv, const Var& rope_key,
                     const AttentionShape& s, const Rope& rope, const ops::AttentionMask& mask) {
  ExecutionContext& context = graph.context();
  const Shape key_shape{s.batch * s.tokens, s.heads, s.head_dim};
  const Shape key_heads{s.batch, s.tokens, s.heads, s.head_dim};
  LatentViews views(q.data, kv.data, rope_key.data, s);
  ops::rope(context, views.q_rope, *rope.table, rope.positions, false);
  ops::rope(context, views.rope_key, *rope.table, rope.positions, false);
  Tensor k = context.empty(q.data.dtype(), key_shape);
  ops::latent_keys_forward(context, views.kv, rope_key.data, k);
  Tensor out4 = context.empty(q.data.dtype(), {s.batch, s.tokens, s.heads, s.value_dim});
  const Shape flat{s.batch * s.tokens, s.heads * s.value_dim};
  if (KvCache* cache = graph.cache()) {
    cache->attend(context, views.q, k.view(key_heads), views.values, mask, out4);
    return graph.value(out4.view(flat));
  }
  Tensor lse = context.empty(DType::f32, {s.batch, s.heads, s.tokens});
  attend(context, s.group, views.q, k.view(key_heads), views.values, mask, out4, lse);
  Var out = graph.value(out4.view({s.batch * s.tokens, s.heads * s.value_dim}));
  graph.record([&graph, &context, key_shape, key_heads, s, rope, mask, q, kv, rope_key, k, out4,
                lse, grad = out.grad] {
    Tensor dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Tensor dq = context.empty(q.data.dtype(), q.data.shape());
    Tensor dkv = context.empty(kv.data.dtype(), kv.data.shape());
    Tensor drope = context.empty(q.data.dtype(), rope_key.data.shape());
    Tensor dk = context.empty(q.data.dtype(), key_shape);
    const LatentViews saved(q.data, kv.data, rope_key.data, s);
    LatentViews gradient(dq, dkv, drope, s);
    Tensor dk4 = dk.view(key_heads);
    attend_backward(context, s.group, saved.q, k.view(key_heads), saved.values, out4, lse,
                    dy.view(out4.shape()), mask, gradient.q, dk4, gradient.values);
    ops::latent_keys_backward(context, dk, gradient.kv, drope);
    ops::rope(context, gradient.q_rope, *rope.table, rope.positions, true);
    ops::rope(context, gradient.rope_key, *rope.table, rope.positions, true);
    graph.add_grad(*q.grad, std::move(dq));
    graph.add_grad(*kv.grad, std::move(dkv));
    graph.add_grad(*rope_key.grad, std::move(drope));
  });
  return out;
}

}  // namespace sortie::trainer
