// GPT-2 block (Radford et al. 2019): LayerNorm before each part, learned positions, GELU in its
// tanh form, biases everywhere.
//   x += Wo . attention(Wqkv . LN1(x))
//   x += Wdown . gelu(Wup . LN2(x))
#include "trainer/models/attention_module.h"
#include "trainer/nn/modules.h"

namespace sortie::trainer {
namespace {

class Gpt2Block final : public Block {
 public:
  Gpt2Block(const BlockArguments& arguments, const std::string& name)
      : attend_(arguments, name + ".attention"),
        drop_attention_(arguments, name + ".attention.out"),
        drop_mlp_(arguments, name + ".mlp.down") {
    const auto& [config, s, layer, store, rope] = arguments;
    const double std_dev = config.init_std, out_std = residual_std(config.init_std, s.layers);
    attention_norm_ = add_norm(store, name + ".attention_norm", ops::NormKind::layer, s.hidden,
                               config.norm_epsilon);
    qkv_ = add_linear(store, name + ".attention.qkv", 3 * s.hidden, s.hidden, std_dev, true,
                      {{"q", s.hidden}, {"k", s.hidden}, {"v", s.hidden}});
    out_ = add_linear(store, name + ".attention.out", s.hidden, s.hidden, out_std, true);
    mlp_norm_ =
        add_norm(store, name + ".mlp_norm", ops::NormKind::layer, s.hidden, config.norm_epsilon);
    up_ = add_linear(store, name + ".mlp.up", s.ffn, s.hidden, std_dev, true);
    down_ = add_linear(store, name + ".mlp.down", s.hidden, s.ffn, out_std, true);
  }

  Hidden forward(Graph& graph, const Hidden& in, ForwardContext& context) const override {
    const auto [x, h] = residual_norm(graph, in.residual, in.branch, attention_norm_);
    const Var attended = out_(graph, attend_(graph, qkv_(graph, h), context));
    const auto [x2, h2] =
        residual_norm(graph, x, drop_attention_(graph, attended, context), mlp_norm_);
    const Var transformed = down_(graph, gelu(graph, up_(graph, h2), ops::Gelu::tanh));
    return {x2, drop_mlp_(graph, transformed, context)};
  }

 private:
  AttentionRule attend_;
  ResidualDropout drop_attention_, drop_mlp_;
  NormParameters attention_norm_, mlp_norm_;
  LinearModule qkv_, out_, up_, down_;
};

HfFormat hf_format() {
  using M = config::ModelConfig;
  return {.model_type = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .prefix = "transformer.",
          .keys = {{"vocab_size", &M::vocab_size, 50257},
                   {"n_embd", &M::hidden_size, 768},
                   {"n_layer", &M::num_layers, 12},
                   {"n_head", &M::num_attention_heads, 12},
                   {"n_inner", &M::ffn_hidden_size},
                   {"n_positions", &M::num_positions, 1024},
                   {"layer_norm_epsilon", &M::norm_epsilon, 1e-5},
                   {"embd_pdrop", &M::embedding_dropout, 0.1},
                   {"attn_pdrop", &M::attention_dropout, 0.1},
                   {"resid_pdrop", &M::residual_dropout, 0.1},
                   {"initializer_range", &M::init_std, 0.02},
                   {"tie_word_embeddings", &M::weight_tying, true}},
          .fixed = {{"activation_function", "gelu_new"},
                    {"scale_attn_weights", true},
                    {"scale_attn_by_inverse_layer_idx", false},
                    {"add_cross_attention", false}},
          .parts = {},
          .modules =
              {{"transformer.wte", "embedding"},
               {"transformer.wpe", "positions"},
               {"transformer.h.{}.ln_1", "layers.{}.attention_norm"},
               {"transformer.h.{}.attn.c_attn", "layers.{}.attention.qkv", {}, HfForm::transposed},
               {"transformer.h.{}.attn.c_proj", "layers.{}.attention.out", {}, HfForm::transposed},
               {"transformer.h.{}.ln_2", "layers.{}.mlp_norm"},
               {"transformer.h.{}.mlp.c_fc", "layers.{}.mlp.up", {}, HfForm::transposed},
               {"transformer.h.{}.mlp.c_proj", "layers.{}.mlp.down", {}, HfForm::transposed},
               {"transformer.ln_f", "final_norm"},
               {"lm_head", "head"}},
          .buffers = {".attn.bias", ".attn.masked_bias"}};
}

}  // namespace

Family gpt2_family() {
  return {.name = "gpt2",
          .final_norm = ops::NormKind::layer,
          .learned_positions = true,
          .make_block = make_block<Gpt2Block>,
          .hf = hf_format()};
}

}  // namespace sortie::trainer
