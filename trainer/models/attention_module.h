// The attention of a layer as [model] defines it for all families: scale, RoPE, window, dropout.
#pragma once

#include <algorithm>
#include <string>

#include "trainer/autograd/tensor_parallel.h"
#include "trainer/models/block.h"

namespace sortie::trainer {

/// The heads of one rank.
struct OwnHeads {
  OwnHeads(const ModelShape& shape, const TensorGroup* group)
      : heads(part_of(shape.heads, group)),
        kv_heads(std::max<std::int64_t>(part_of(shape.kv_heads, group), 1)),
        first(group == nullptr ? 0 : heads * group->rank()) {}
  std::int64_t heads, kv_heads;
  std::int64_t first;  // of all query heads
  /// Returns the dropout of this rank's part of the scores [H, T, T] of a sample; T = tokens.
  ops::Dropout of_scores(ops::Dropout dropout, std::int64_t tokens) const {
    dropout.first_element = first * tokens * tokens;
    return dropout;
  }
};

class AttentionRule {
 public:
  /// By default scores are divided by the root of D (Vaswani et al. 2017), RoPE is applied if the
  /// model has it, and the window is that of the layer. A family may change `scale` and `window`.
  AttentionRule(const BlockArguments& arguments, std::string place);

  float scale;
  std::int64_t window;

  /// Applies RoPE and attention to packed [Q | K | V].
  Var operator()(Graph& graph, const Var& qkv, const ForwardContext& context) const;
  /// Applies RoPE and attention to q, k and v.
  Var operator()(Graph& graph, const Var& q, const Var& k, const Var& v,
                 const ForwardContext& context) const;

 private:
  AttentionShape shape(const ForwardContext& context) const;
  ops::AttentionMask mask(const ForwardContext& context) const;
  Rope rope(const ForwardContext& context) const;

  const ModelShape& shape_;
  const OwnHeads own_;
  const ops::RopeTable* rope_;
  double dropout_;
  std::string place_;
};

/// Dropout of the output that a part of a layer adds to the residual stream.
class ResidualDropout {
 public:
  ResidualDropout(const BlockArguments& arguments, std::string place)
      : probability_(arguments.config.residual_dropout),
        place_(std::move(place)),
        group_(arguments.store.tensor_group()) {}
  Var operator()(Graph& graph, const Var& x, const ForwardContext& context) const {
    return dropout(graph, x, context.dropout(probability_, place_), context.batch, group_,
                   context.group);
  }

 private:
  double probability_;
  std::string place_;
  const TensorGroup* group_;
};

}  // namespace sortie::trainer
