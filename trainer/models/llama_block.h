// The block of the LLaMA family (Touvron et al. 2023, grouped queries as in Llama 2), which
// Mistral, Mixtral and Qwen 2 share:
//   x += Wo . attention(RoPE(Wqkv . RMSNorm(x)))
//   x += Wdown . (silu(Wgate . h) * Wup . h),  h = RMSNorm(x), or a mixture of such
#pragma once

#include "trainer/models/attention_module.h"
#include "trainer/models/mixture.h"

namespace sortie::trainer {

/// The Hugging Face format of LLaMA, from which related families derive theirs.
HfFormat hf_llama_format();

class LlamaBlock : public Block {
 public:
  LlamaBlock(const BlockArguments& arguments, const std::string& name, bool qkv_bias = false)
      : attend_(arguments, name + ".attention"),
        drop_attention_(arguments, name + ".attention.out"),
        drop_mlp_(arguments, name + ".mlp.down") {
    const auto& [config, s, layer, store, rope] = arguments;
    const double std_dev = config.init_std, out_std = residual_std(config.init_std, s.layers);
    const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    attention_norm_ = add_norm(store, name + ".attention_norm", ops::NormKind::rms, s.hidden,
                               config.norm_epsilon);
    qkv_ = add_linear(store, name + ".attention.qkv", q + 2 * kv, s.hidden, std_dev, qkv_bias,
                      {{"q", q, s.head_dim},
                       {"k", kv, s.head_dim, /*repeats=*/true},
                       {"v", kv, s.head_dim, /*repeats=*/true}},
                      LinearCut::outputs);
    out_ = add_linear(store, name + ".attention.out", s.hidden, q, out_std, false, {},
                      LinearCut::inputs);
    mlp_norm_ =
        add_norm(store, name + ".mlp_norm", ops::NormKind::rms, s.hidden, config.norm_epsilon);
    mlp_.emplace(arguments, name + ".mlp");
  }

  Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const override {
    const auto [x, h] = residual_norm(graph, in.residual, in.branch, attention_norm_);
    const Var attended = out_(graph, attend_(graph, qkv_(graph, h), context));
    const auto [x2, h2] =
        residual_norm(graph, x, drop_attention_(graph, attended, context), mlp_norm_);
    return {x2, drop_mlp_(graph, (*mlp_)(graph, h2, context), context)};
  }

 private:
  AttentionRule attend_;
  ResidualDropout drop_attention_, drop_mlp_;
  NormParameters attention_norm_, mlp_norm_;
  LinearModule qkv_, out_;
  std::optional<FeedForward> mlp_;
};

}  // namespace sortie::trainer
