// The block of GPT-2 (Radford et al. 2019), which GPT-Neo shares:
//   x += Wo . attention(Wqkv . LN1(x))
//   x += Wdown . gelu(Wup . LN2(x)),  gelu in its tanh form
#pragma once

#include "trainer/models/attention_module.h"
#include "trainer/nn/modules.h"

namespace sortie::trainer {

class GptBlock : public Block {
 public:
  GptBlock(const BlockArguments& arguments, const std::string& name, bool qkv_bias = true)
      : attend_(arguments, name + ".attention"),
        drop_attention_(arguments, name + ".attention.out"),
        drop_mlp_(arguments, name + ".mlp.down") {
    const auto& [config, s, layer, store, rope] = arguments;
    const double std_dev = config.init_std, out_std = residual_std(config.init_std, s.layers);
    attention_norm_ = add_norm(store, name + ".attention_norm", ops::NormKind::layer, s.hidden,
                               config.norm_epsilon);
    qkv_ = add_linear(
        store, name + ".attention.qkv", 3 * s.hidden, s.hidden, std_dev, qkv_bias,
        {{"q", s.hidden, s.head_dim}, {"k", s.hidden, s.head_dim}, {"v", s.hidden, s.head_dim}},
        LinearCut::outputs);
    out_ = add_linear(store, name + ".attention.out", s.hidden, s.hidden, out_std, true, {},
                      LinearCut::inputs);
    mlp_norm_ =
        add_norm(store, name + ".mlp_norm", ops::NormKind::layer, s.hidden, config.norm_epsilon);
    up_ =
        add_linear(store, name + ".mlp.up", s.ffn, s.hidden, std_dev, true, {}, LinearCut::outputs);
    down_ = add_linear(store, name + ".mlp.down", s.hidden, s.ffn, out_std, true, {},
                       LinearCut::inputs);
  }

  Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const override {
    const auto [x, h] = residual_norm(graph, in.residual, in.branch, attention_norm_);
    const Var attended = out_(graph, attend_(graph, qkv_(graph, h), context));
    const auto [x2, h2] =
        residual_norm(graph, x, drop_attention_(graph, attended, context), mlp_norm_);
    const Var transformed = down_(graph, gelu(graph, up_(graph, h2), ops::Gelu::tanh));
    return {x2, drop_mlp_(graph, transformed, context)};
  }

 protected:
  AttentionRule attend_;

 private:
  ResidualDropout drop_attention_, drop_mlp_;
  NormParameters attention_norm_, mlp_norm_;
  LinearModule qkv_, out_, up_, down_;
};

}  // namespace sortie::trainer
