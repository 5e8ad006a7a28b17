// How a layer attends, as [model] says it for all families.
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
  /// What a rank drops of the scores [H, T, T] of a sample.
  ops::Dropout of_scores(ops::Dropout dropout, std::int64_t tokens) const {
    dropout.first_element = first * tokens * tokens;
    return dropout;
  }
};

class AttentionRule {
 public:
  /// Scores over the root of D (Vaswani et al. 2017), RoPE where the model has a table, the window
  /// of the layer. All can be changed by the family.
  AttentionRule(const BlockArguments& arguments, std::string place);

  float scale;
  std::int64_t window;

  /// Attention over packed [Q | K | V]; RoPE is done on the way.
  Var operator()(Graph& graph, const Var& qkv, const ForwardContext& context) const;
  /// Attention over q, k and v, RoPE included.
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

/// Dropout of what a layer's part adds to the residual stream.
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
