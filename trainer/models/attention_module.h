// The attention that most families share: packed [Q | K | V], RoPE, the micro-batch's documents.
#pragma once

#include <cmath>

#include "trainer/models/block.h"

namespace sortie::trainer {

inline AttentionShape attention_shape(const ModelShape& shape, const ForwardContext& context) {
  return {context.batch, context.tokens, shape.heads, shape.kv_heads, shape.head_dim};
}

/// Scores times 1 / sqrt(D) (Vaswani et al. 2017), every earlier token of the document seen.
inline ops::AttentionMask attention_mask(const ModelShape& shape, const ForwardContext& context) {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
          .document_start = context.document_start};
}

inline Var self_attention(Graph& graph, const Var& qkv, const ModelShape& shape,
                          const ops::RopeTable& rope, const ForwardContext& context) {
  return attention(graph, qkv, attention_shape(shape, context), {&rope, context.positions},
                   attention_mask(shape, context));
}

}  // namespace sortie::trainer
