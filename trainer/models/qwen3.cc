// Qwen 3 block (Yang et al. 2025): LLaMA's, with an RMSNorm of every head of the queries and of the
// keys before RoPE.
//   x += Wo . attention(RoPE(RMSNorm(Wq . h)), RoPE(RMSNorm(Wk . h)), Wv . h),  h = RMSNorm(x)
//   x += Wdown . (silu(Wgate . h) * Wup . h),  h = RMSNorm(x), or a mixture of such
#include "trainer/models/llama_block.h"

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
    query_ = add_linear(store, name + ".attention.q", q, s.hidden, std_dev, false,
                        {{"q", q, s.head_dim}}, LinearCut::outputs);
    key_ = add_linear(store, name + ".attention.k", kv, s.hidden, std_dev, false,
                      {{"k", kv, s.head_dim, /*repeats=*/true}}, LinearCut::outputs);
    value_ = add_linear(store, name + ".attention.v", kv, s.hidden, std_dev, false,
                        {{"v", kv, s.head_dim, /*repeats=*/true}}, LinearCut::outputs);
    query_norm_ = add_norm(store, name + ".attention.q_norm", ops::NormKind::rms, s.head_dim,
                           config.norm_epsilon, /*of_heads=*/true);
    key_norm_ = add_norm(store, name + ".attention.k_norm", ops::NormKind::rms, s.head_dim,
                         config.norm_epsilon, /*of_heads=*/true);
    out_ = add_linear(store, name + ".attention.out", s.hidden, q, out_std, false, {},
                      LinearCut::inputs);
    mlp_norm_ =
        add_norm(store, name + ".mlp_norm", ops::NormKind::rms, s.hidden, config.norm_epsilon);
    mlp_.emplace(arguments, name + ".mlp");
  }

  Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const override {
    const auto [x, h] = residual_norm(graph, in.residual, in.branch, attention_norm_);
    const Var entered = enter(graph, h, query_.group);
    const Var q = head_norm(graph, query_.product(graph, entered), shape_.head_dim, query_norm_);
    const Var k = head_norm(graph, key_.product(graph, entered), shape_.head_dim, key_norm_);
    const Var v = value_.product(graph, entered);
    const Var attended = out_(graph, attend_(graph, q, k, v, context));
    const auto [x2, h2] =
        residual_norm(graph, x, drop_attention_(graph, attended, context), mlp_norm_);
    return {x2, drop_mlp_(graph, (*mlp_)(graph, h2, context), context)};
  }

 private:
  const ModelShape& shape_;
  AttentionRule attend_;
  ResidualDropout drop_attention_, drop_mlp_;
  NormParameters attention_norm_, mlp_norm_, query_norm_, key_norm_;
  LinearModule query_, key_, value_, out_;
  std::optional<FeedForward> mlp_;
};

HfFormat qwen3_format() {
  HfFormat format = hf_llama_format();
  format.model_type = "qwen3";
  format.architecture = "Qwen3ForCausalLM";
  for (HfKey& key : format.keys) {
    if (key.name == "vocab_size") key.fallback = 151936;
    if (key.name == "num_key_value_heads") key.fallback = 32;
    if (key.name == "head_dim") key.fallback = 128;
    if (key.name == "intermediate_size") key.fallback = 22016;
    if (key.name == "max_position_embeddings") key.fallback = 32768;
  }
  // Queries, keys and values are not packed, because queries and keys are normed separately.
  for (HfModule& module : format.modules) {
    if (module.segment == "q") module = {module.hf, "layers.{}.attention.q"};
    if (module.segment == "k") module = {module.hf, "layers.{}.attention.k"};
    if (module.segment == "v") module = {module.hf, "layers.{}.attention.v"};
  }
  format.modules.push_back({"model.layers.{}.self_attn.q_norm", "layers.{}.attention.q_norm"});
  format.modules.push_back({"model.layers.{}.self_attn.k_norm", "layers.{}.attention.k_norm"});
  format.fixed = {{"hidden_act", "silu", {"swish"}}, {"attention_bias", false}};
  format.parts = {&kHfRope, &kHfLayerTypes};
  return format;
}

}  // namespace

Family qwen3_family() {
  return {.name = "qwen3",
          .final_norm = ops::NormKind::rms,
          .make_block = make_block<Qwen3Block>,
          .hf = qwen3_format()};
}

// Qwen 3 with mixtures of experts: a softmax router; the weights of the chosen experts may be
// divided by their sum.
Family qwen3_moe_family() {
  HfFormat format = qwen3_format();
  format.model_type = "qwen3_moe";
  format.architecture = "Qwen3MoeForCausalLM";
  for (HfKey& key : format.keys) {
    if (key.name == "hidden_size") key.fallback = 2048;
    if (key.name == "num_hidden_layers") key.fallback = 24;
    if (key.name == "num_key_value_heads") key.fallback = 4;
    if (key.name == "head_dim") key.fallback = 0;
    if (key.name == "intermediate_size") key.fallback = 6144;
  }
  format.fixed.push_back({"use_sliding_window", false});
  format.parts = {&kHfRope, &kHfQwen3Moe};
  add_hf_mixture(format.modules);
  return {.name = "qwen3-moe",
          .final_norm = ops::NormKind::rms,
          .make_block = make_block<Qwen3Block>,
          .hf = format};
}

}  // namespace sortie::trainer
