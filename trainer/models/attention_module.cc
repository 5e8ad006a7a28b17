#include "trainer/models/attention_module.h"

#include <cmath>

#include "common/config/architectures.h"

namespace sortie::trainer {

AttentionRule::AttentionRule(const BlockArguments& arguments, std::string place)
    : scale(1.0f / std::sqrt(static_cast<float>(arguments.shape.head_dim))),
      window(config::window_of_layer(arguments.config, arguments.layer)),
      shape_(arguments.shape),
      own_(arguments.shape, arguments.store.tensor_group()),
      rope_(arguments.shape.rotary_dims > 0 ? &arguments.rope : nullptr),
      dropout_(arguments.config.attention_dropout),
      place_(std::move(place)) {}

AttentionShape AttentionRule::shape(const ForwardContext& context) const {
  return {.batch = context.batch,
          .tokens = context.tokens,
          .heads = own_.heads,
          .kv_heads = own_.kv_heads,
          .head_dim = shape_.head_dim,
          .group = context.group};
}

ops::AttentionMask AttentionRule::mask(const ForwardContext& context) const {
  return {scale, window, context.document_start,
          own_.of_scores(context.dropout(dropout_, place_), context.whole_tokens())};
}

Rope AttentionRule::rope(const ForwardContext& context) const {
  return {rope_, context.positions};
}

Var AttentionRule::operator()(Graph& graph, const Var& qkv, const ForwardContext& context) const {
  return attention(graph, qkv, shape(context), rope(context), mask(context));
}

Var AttentionRule::operator()(Graph& graph, const Var& q, const Var& k, const Var& v,
                              const ForwardContext& context) const {
  const AttentionShape s = shape(context);
  const Var turned_q = trainer::rope(graph, q, s.heads, s, rope(context));
  const Var turned_k = trainer::rope(graph, k, s.kv_heads, s, rope(context));
  return attention(graph, turned_q, turned_k, v, s, mask(context));
}

}  // namespace sortie::trainer
