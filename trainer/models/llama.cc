// LLaMA block (Touvron et al. 2023, grouped queries as in Llama 2):
//   x += Wo . attention(RoPE(Wqkv . RMSNorm(x)))
//   x += Wdown . (silu(Wgate . h) * Wup . h),  h = RMSNorm(x)
#include "trainer/models/attention_module.h"
#include "trainer/models/block.h"
#include "trainer/nn/modules.h"

namespace sortie::trainer {
namespace {

class LlamaBlock final : public Block {
 public:
  LlamaBlock(const BlockArguments& arguments) : shape_(arguments.shape), rope_(arguments.rope) {
    const auto& [config, s, layer, store, rope] = arguments;
    const std::string name = "layers." + std::to_string(layer);
    const double std_dev = config.init_std, out_std = residual_std(config.init_std, s.layers);
    const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    attention_norm_ = add_norm(store, name + ".attention_norm", ops::NormKind::rms, s.hidden,
                               config.norm_epsilon);
    qkv_ = add_linear(store, name + ".attention.qkv", q + 2 * kv, s.hidden, std_dev, false,
                      {{"q", q}, {"k", kv}, {"v", kv}});
    out_ = add_linear(store, name + ".attention.out", s.hidden, q, out_std, false);
    mlp_norm_ =
        add_norm(store, name + ".mlp_norm", ops::NormKind::rms, s.hidden, config.norm_epsilon);
    gate_up_ = add_linear(store, name + ".mlp.gate_up", 2 * s.ffn, s.hidden, std_dev, false,
                          {{"gate", s.ffn}, {"up", s.ffn}});
    down_ = add_linear(store, name + ".mlp.down", s.hidden, s.ffn, out_std, false);
  }

  Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const override {
    const auto [x, h] = residual_norm(graph, in.residual, in.branch, attention_norm_);
    const Var attended = out_(graph, self_attention(graph, qkv_(graph, h), shape_, rope_, context));
    const auto [x2, h2] = residual_norm(graph, x, attended, mlp_norm_);
    return {x2, down_(graph, swiglu(graph, gate_up_(graph, h2)))};
  }

 private:
  const ModelShape& shape_;
  const ops::RopeTable& rope_;
  NormParameters attention_norm_, mlp_norm_;
  LinearModule qkv_, out_, gate_up_, down_;
};

std::unique_ptr<Block> make_block(const BlockArguments& arguments) {
  return std::make_unique<LlamaBlock>(arguments);
}

}  // namespace

Family llama_family() {
  return {.name = "llama", .final_norm = ops::NormKind::rms, .make_block = make_block};
}

}  // namespace sortie::trainer
