// Qwen 3 block (Yang et al. 2025): LLaMA's, but every head of the queries and of the keys goes
// through an RMSNorm before RoPE.
//   x += Wo . attention(RoPE(RMSNorm(Wq . h)), RoPE(RMSNorm(Wk . h)), Wv . h),  h = RMSNorm(x)
//   x += Wdown . (silu(Wgate . h) * Wup . h),  h = RMSNorm(x)
#include "trainer/models/attention_module.h"
#include "trainer/nn/modules.h"

namespace sortie::trainer {
namespace {

class Qwen3Block final : public Block {
 public:
  Qwen3Block(const BlockArguments& arguments, const std::string& name)
      : shape_(arguments.shape),
        attend_(arguments, name + ".attention"),
        drop_attention_(arguments, name + ".attention.out"),
        drop_mlp_(arguments, name + ".mlp.down") {
    const auto& [config, s, layer, store, rope] = arguments;
    const double std_dev = config.init_std, out_std = residual_std(config.init_std, s.layers);
    const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    attention_norm_ = add_norm(store, name + ".attention_norm", ops::NormKind::rms, s.hidden,
                               config.norm_epsilon);
    query_ = add_linear(store, name + ".attention.q", q, s.hidden, std_dev, false);
    key_ = add_linear(store, name + ".attention.k", kv, s.hidden, std_dev, false);
    value_ = add_linear(store, name + ".attention.v", kv, s.hidden, std_dev, false);
    query_norm_ = add_norm(store, name + ".attention.q_norm", ops::NormKind::rms, s.head_dim,
                           config.norm_epsilon);
    key_norm_ = add_norm(store, name + ".attention.k_norm", ops::NormKind::rms, s.head_dim,
                         config.norm_epsilon);
    out_ = add_linear(store, name + ".attention.out", s.hidden, q, out_std, false);
    mlp_norm_ =
        add_norm(store, name + ".mlp_norm", ops::NormKind::rms, s.hidden, config.norm_epsilon);
    mlp_ = add_swiglu(store, name + ".mlp", s.hidden, s.ffn, std_dev, out_std);
  }

  Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const override {
    const auto [x, h] = residual_norm(graph, in.residual, in.branch, attention_norm_);
    const Var q = head_norm(graph, query_(graph, h), shape_.head_dim, query_norm_);
    const Var k = head_norm(graph, key_(graph, h), shape_.head_dim, key_norm_);
    const Var attended = out_(graph, attend_(graph, q, k, value_(graph, h), context));
    const auto [x2, h2] =
        residual_norm(graph, x, drop_attention_(graph, attended, context), mlp_norm_);
    return {x2, drop_mlp_(graph, mlp_(graph, h2), context)};
  }

 private:
  const ModelShape& shape_;
  AttentionRule attend_;
  ResidualDropout drop_attention_, drop_mlp_;
  NormParameters attention_norm_, mlp_norm_, query_norm_, key_norm_;
  LinearModule query_, key_, value_, out_;
  SwigluModule mlp_;
};

}  // namespace

Family qwen3_family() {
  return {.name = "qwen3", .final_norm = ops::NormKind::rms, .make_block = make_block<Qwen3Block>};
}

}  // namespace sortie::trainer
