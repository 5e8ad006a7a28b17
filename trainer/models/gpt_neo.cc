// GPT-Neo block (Black et al. 2021): GPT-2's, but scores are not scaled, queries, keys and values
// have no biases, and every other layer sees a window only.
//   x += Wo . attention(Wqkv . LN1(x))
//   x += Wdown . gelu(Wup . LN2(x))
#include "trainer/models/gpt_block.h"

namespace sortie::trainer {
namespace {

class GptNeoBlock final : public GptBlock {
 public:
  GptNeoBlock(const BlockArguments& arguments, const std::string& name)
      : GptBlock(arguments, name, /*qkv_bias=*/false) {
    attend_.scale = 1.0f;
  }
};

HfFormat gpt_neo_format() {
  using M = config::ModelConfig;
  return {.model_type = "gpt_neo",
          .architecture = "GPTNeoForCausalLM",
          .prefix = "transformer.",
          .keys = {{"vocab_size", &M::vocab_size, 50257},
                   {"hidden_size", &M::hidden_size, 2048},
                   {"num_layers", &M::num_layers, 24},
                   {"num_heads", &M::num_attention_heads, 16},
                   {"intermediate_size", &M::ffn_hidden_size},
                   {"max_position_embeddings", &M::num_positions, 2048},
                   {"layer_norm_epsilon", &M::norm_epsilon, 1e-5},
                   {"embed_dropout", &M::embedding_dropout},
                   {"attention_dropout", &M::attention_dropout},
                   {"resid_dropout", &M::residual_dropout},
                   {"initializer_range", &M::init_std, 0.02},
                   {"tie_word_embeddings", &M::weight_tying, true}},
          .fixed = {{"activation_function", "gelu_new", {"gelu_fast", "gelu_pytorch_tanh"}}},
          .parts = {&kHfGptNeoLayers},
          .modules = {{"transformer.wte", "embedding"},
                      {"transformer.wpe", "positions"},
                      {"transformer.h.{}.ln_1", "layers.{}.attention_norm"},
                      {"transformer.h.{}.attn.attention.q_proj", "layers.{}.attention.qkv", "q"},
                      {"transformer.h.{}.attn.attention.k_proj", "layers.{}.attention.qkv", "k"},
                      {"transformer.h.{}.attn.attention.v_proj", "layers.{}.attention.qkv", "v"},
                      {"transformer.h.{}.attn.attention.out_proj", "layers.{}.attention.out"},
                      {"transformer.h.{}.ln_2", "layers.{}.mlp_norm"},
                      {"transformer.h.{}.mlp.c_fc", "layers.{}.mlp.up"},
                      {"transformer.h.{}.mlp.c_proj", "layers.{}.mlp.down"},
                      {"transformer.ln_f", "final_norm"},
                      {"lm_head", "head"}},
          .buffers = {".attn.attention.bias", ".attn.attention.masked_bias"}};
}

}  // namespace

Family gpt_neo_family() {
  return {.name = "gpt-neo",
          .final_norm = ops::NormKind::layer,
          .make_block = make_block<GptNeoBlock>,
          .hf = gpt_neo_format()};
}

}  // namespace sortie::trainer
