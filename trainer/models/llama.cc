// LLaMA 1 to 3 (Touvron et al. 2023, Dubey et al. 2024): RMSNorm, RoPE, grouped-query attention,
// SwiGLU, no biases. Llama 3.1 stretches RoPE (rope_scaling.h).
#include "trainer/models/llama_block.h"

namespace sortie::trainer {

HfFormat hf_llama_format() {
  using M = config::ModelConfig;
  return {
      .model_type = "llama",
      .architecture = "LlamaForCausalLM",
      .prefix = "model.",
      .keys = {{"vocab_size", &M::vocab_size, 32000},
               {"hidden_size", &M::hidden_size, 4096},
               {"num_hidden_layers", &M::num_layers, 32},
               {"num_attention_heads", &M::num_attention_heads, 32},
               {"num_key_value_heads", &M::attention_num_kv_heads},
               {"head_dim", &M::head_dim},
               {"intermediate_size", &M::ffn_hidden_size, 11008},
               {"max_position_embeddings", &M::num_positions, 2048},
               {"rms_norm_eps", &M::norm_epsilon, 1e-6},
               {"attention_dropout", &M::attention_dropout},
               {"initializer_range", &M::init_std, 0.02},
               {"tie_word_embeddings", &M::weight_tying, false}},
      .fixed = {{"hidden_act", "silu", {"swish"}}, {"attention_bias", false}, {"mlp_bias", false}},
      .parts = {&kHfRope},
      .modules = {{"model.embed_tokens", "embedding"},
                  {"model.layers.{}.input_layernorm", "layers.{}.attention_norm"},
                  {"model.layers.{}.self_attn.q_proj", "layers.{}.attention.qkv", "q"},
                  {"model.layers.{}.self_attn.k_proj", "layers.{}.attention.qkv", "k"},
                  {"model.layers.{}.self_attn.v_proj", "layers.{}.attention.qkv", "v"},
                  {"model.layers.{}.self_attn.o_proj", "layers.{}.attention.out"},
                  {"model.layers.{}.post_attention_layernorm", "layers.{}.mlp_norm"},
                  {"model.layers.{}.mlp.gate_proj", "layers.{}.mlp.gate_up", "gate"},
                  {"model.layers.{}.mlp.up_proj", "layers.{}.mlp.gate_up", "up"},
                  {"model.layers.{}.mlp.down_proj", "layers.{}.mlp.down"},
                  {"model.norm", "final_norm"},
                  {"lm_head", "head"}},
      .buffers = {".rotary_emb.inv_freq"}};
}

Family llama_family() {
  return {.name = "llama",
          .final_norm = ops::NormKind::rms,
          .make_block = make_block<LlamaBlock>,
          .hf = hf_llama_format()};
}

}  // namespace sortie::trainer
