// GPT-2 block (Radford et al. 2019): LayerNorm before each part, learned positions, GELU in its
// tanh form, biases everywhere.
//   x += Wo . attention(Wqkv . LN1(x))
//   x += Wdown . gelu(Wup . LN2(x))
#include "trainer/models/gpt_block.h"

namespace sortie::trainer {
namespace {

HfFormat gpt2_format() {
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
          .fixed = {{"activation_function", "gelu_new", {"gelu_fast", "gelu_pytorch_tanh"}},
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
          .make_block = make_block<GptBlock>,
          .hf = gpt2_format()};
}

}  // namespace sortie::trainer
