// GPT-NeoX block (Black et al. 2022): LayerNorm, RoPE on a part of each head, GELU, biases
// everywhere.
//   parallel:    x += attention(LN1(x)) + MLP(LN2(x))
//   sequential:  x += attention(LN1(x));  x += MLP(LN2(x))
#include "trainer/models/attention_module.h"
#include "trainer/nn/modules.h"

namespace sortie::trainer {
namespace {

class GptNeoxBlock final : public Block {
 public:
  GptNeoxBlock(const BlockArguments& arguments, const std::string& name)
      : parallel_(arguments.config.parallel_residual),
        attend_(arguments, name + ".attention"),
        drop_attention_(arguments, name + ".attention.out"),
        drop_mlp_(arguments, name + ".mlp.down") {
    const auto& [config, s, layer, store, rope] = arguments;
    const double std_dev = config.init_std, out_std = residual_std(config.init_std, s.layers);
    const std::int64_t q = s.heads * s.head_dim;
    attention_norm_ = add_norm(store, name + ".attention_norm", ops::NormKind::layer, s.hidden,
                               config.norm_epsilon);
    mlp_norm_ =
        add_norm(store, name + ".mlp_norm", ops::NormKind::layer, s.hidden, config.norm_epsilon);
    qkv_ = add_linear(store, name + ".attention.qkv", 3 * q, s.hidden, std_dev, true,
                      {{"q", q, s.head_dim}, {"k", q, s.head_dim}, {"v", q, s.head_dim}},
                      LinearCut::outputs);
    out_ = add_linear(store, name + ".attention.out", s.hidden, q, out_std, true, {},
                      LinearCut::inputs);
    up_ =
        add_linear(store, name + ".mlp.up", s.ffn, s.hidden, std_dev, true, {}, LinearCut::outputs);
    down_ = add_linear(store, name + ".mlp.down", s.hidden, s.ffn, out_std, true, {},
                       LinearCut::inputs);
  }

  Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const override {
    const auto [x, h] = residual_norm(graph, in.residual, in.branch, attention_norm_);
    const Var attended =
        drop_attention_(graph, out_(graph, attend_(graph, qkv_(graph, h), context)), context);
    if (parallel_) {
      const auto [same, h2] = residual_norm(graph, x, {}, mlp_norm_);
      return {same, add(graph, attended, mlp(graph, h2, context))};
    }
    const auto [x2, h2] = residual_norm(graph, x, attended, mlp_norm_);
    return {x2, mlp(graph, h2, context)};
  }

 private:
  Var mlp(Graph& graph, const Var& h, const ForwardContext& context) const {
    return drop_mlp_(graph, down_(graph, gelu(graph, up_(graph, h), ops::Gelu::exact)), context);
  }

  bool parallel_;
  AttentionRule attend_;
  ResidualDropout drop_attention_, drop_mlp_;
  NormParameters attention_norm_, mlp_norm_;
  LinearModule qkv_, out_, up_, down_;
};

HfFormat gpt_neox_format() {
  using M = config::ModelConfig;
  return {.model_type = "gpt_neox",
          .architecture = "GPTNeoXForCausalLM",
          .prefix = "gpt_neox.",
          .keys = {{"vocab_size", &M::vocab_size, 50432},
                   {"hidden_size", &M::hidden_size, 6144},
                   {"num_hidden_layers", &M::num_layers, 44},
                   {"num_attention_heads", &M::num_attention_heads, 64},
                   {"intermediate_size", &M::ffn_hidden_size, 24576},
                   {"max_position_embeddings", &M::num_positions, 2048},
                   {"layer_norm_eps", &M::norm_epsilon, 1e-5},
                   {"use_parallel_residual", &M::parallel_residual, true},
                   {"hidden_dropout", &M::embedding_dropout},
                   {"attention_dropout", &M::attention_dropout},
                   {"hidden_dropout", &M::residual_dropout},
                   {"initializer_range", &M::init_std, 0.02},
                   {"tie_word_embeddings", &M::weight_tying, false}},
          .fixed = {{"hidden_act", "gelu"}, {"attention_bias", true}},
          .parts = {&kHfPartialRope},
          .modules = {{"gpt_neox.embed_in", "embedding"},
                      {"gpt_neox.layers.{}.input_layernorm", "layers.{}.attention_norm"},
                      {"gpt_neox.layers.{}.post_attention_layernorm", "layers.{}.mlp_norm"},
                      {"gpt_neox.layers.{}.attention.query_key_value",
                       "layers.{}.attention.qkv",
                       {},
                       HfForm::per_head},
                      {"gpt_neox.layers.{}.attention.dense", "layers.{}.attention.out"},
                      {"gpt_neox.layers.{}.mlp.dense_h_to_4h", "layers.{}.mlp.up"},
                      {"gpt_neox.layers.{}.mlp.dense_4h_to_h", "layers.{}.mlp.down"},
                      {"gpt_neox.final_layer_norm", "final_norm"},
                      {"embed_out", "head"}},
          .buffers = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"}};
}

}  // namespace

Family gpt_neox_family() {
  return {.name = "gpt-neo-x",
          .final_norm = ops::NormKind::layer,
          .make_block = make_block<GptNeoxBlock>,
          .hf = gpt_neox_format()};
}

}  // namespace sortie::trainer
