// How a layer attends, as [model] says it for all families.
#pragma once

#include <string>

#include "trainer/models/block.h"

namespace sortie::trainer {

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
  const ops::RopeTable* rope_;
  double dropout_;
  std::string place_;
};

/// Dropout of what a layer's part adds to the residual stream.
class ResidualDropout {
 public:
  ResidualDropout(const BlockArguments& arguments, std::string place)
      : probability_(arguments.config.residual_dropout), place_(std::move(place)) {}
  Var operator()(Graph& graph, const Var& x, const ForwardContext& context) const {
    return dropout(graph, x, context.dropout(probability_, place_), context.batch);
  }

 private:
  double probability_;
  std::string place_;
};

}  // namespace sortie::trainer
