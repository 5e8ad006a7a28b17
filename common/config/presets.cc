// The shapes of published models, under their usual names.
#include <algorithm>
#include <string>
#include <vector>

#include "common/config/architectures.h"

namespace sortie::config {
namespace {

/// Radford et al. 2019.
ModelConfig gpt2(std::int64_t hidden, std::int64_t layers, std::int64_t heads) {
  ModelConfig m;
  m.architecture = "gpt2";
  m.vocab_size = 50257;
  m.hidden_size = hidden;
  m.num_layers = layers;
  m.num_attention_heads = heads;
  m.sequence_length = 1024;
  return m;
}

/// Black et al. 2021; a small one for training over slow links.
ModelConfig gpt_neo_36m() {
  ModelConfig m;
  m.architecture = "gpt-neo";
  m.vocab_size = 50257;
  m.hidden_size = 512;
  m.num_layers = 3;
  m.num_attention_heads = 16;
  m.sequence_length = 2048;
  return m;
}

/// Black et al. 2022; Biderman et al. 2023.
ModelConfig gpt_neo_x(std::int64_t hidden, std::int64_t layers, std::int64_t heads) {
  ModelConfig m;
  m.architecture = "gpt-neo-x";
  m.vocab_size = 50304;
  m.hidden_size = hidden;
  m.num_layers = layers;
  m.num_attention_heads = heads;
  m.sequence_length = 2048;
  m.rotary_percentage = 0.25;
  m.weight_tying = false;
  return m;
}

ModelConfig gpt_neo_x_105m() {
  ModelConfig m = gpt_neo_x(896, 3, 16);
  m.vocab_size = 50432;
  m.ffn_hidden_size = 896;
  return m;
}

/// Dubey et al. 2024.
ModelConfig llama3(std::int64_t hidden, std::int64_t layers, std::int64_t ffn, double factor) {
  ModelConfig m;
  m.architecture = "llama";
  m.vocab_size = 128256;
  m.hidden_size = hidden;
  m.num_layers = layers;
  m.num_attention_heads = 32;
  m.attention_num_kv_heads = 8;
  m.ffn_hidden_size = ffn;
  m.sequence_length = 8192;
  m.num_positions = 131072;
  m.rotary_embedding_base = 500000.0;
  m.rope_scaling = "llama3";
  m.rope_scaling_factor = factor;
  m.rope_scaling_original_length = 8192;
  return m;
}

ModelConfig llama3_8b() {
  ModelConfig m = llama3(4096, 32, 14336, 8.0);
  m.weight_tying = false;
  return m;
}

/// Qwen Team 2024.
ModelConfig qwen25(std::int64_t hidden, std::int64_t layers, std::int64_t heads, std::int64_t ffn,
                   std::int64_t positions) {
  ModelConfig m;
  m.architecture = "qwen2";
  m.vocab_size = 151936;
  m.hidden_size = hidden;
  m.num_layers = layers;
  m.num_attention_heads = heads;
  m.attention_num_kv_heads = 2;
  m.ffn_hidden_size = ffn;
  m.sequence_length = 8192;
  m.num_positions = positions;
  m.rotary_embedding_base = 1e6;
  m.norm_epsilon = 1e-6;
  return m;
}

/// BAAI 2025: OpenSeek-Small-v1-Baseline, 1.4 billion parameters of which 0.4 are active.
ModelConfig openseek_small() {
  ModelConfig m;
  m.architecture = "deepseek-v3";
  m.vocab_size = 151851;
  m.hidden_size = 1280;
  m.num_layers = 6;
  m.num_attention_heads = 10;
  m.ffn_hidden_size = 7168;
  m.sequence_length = 4096;
  m.rotary_embedding_base = 1e6;
  m.norm_epsilon = 1e-6;
  m.init_std = 6e-3;
  m.mla = {.q_lora_rank = 0,
           .kv_lora_rank = 512,
           .qk_nope_head_dim = 128,
           .qk_rope_head_dim = 64,
           .v_head_dim = 128};
  m.moe.num_experts = 64;
  m.moe.topk = 6;
  m.moe.ffn_hidden_size = 896;
  m.moe.num_shared_experts = 2;
  m.moe.first_dense_layers = 1;
  m.moe.scaling_factor = 2.446;
  m.moe.bias_update_rate = 1e-3;
  m.moe.seq_aux_loss_coeff = 1e-4;
  return m;
}

}  // namespace

std::span<const Preset> presets() {
  static const std::vector<Preset> all = {
      {"gpt2-124m", gpt2(768, 12, 12)},
      {"gpt2-355m", gpt2(1024, 24, 16)},
      {"gpt2-774m", gpt2(1280, 36, 20)},
      {"gpt2-1.5b", gpt2(1600, 48, 25)},
      {"gpt-neo-36m", gpt_neo_36m()},
      {"gpt-neo-x-105m", gpt_neo_x_105m()},
      {"pythia-70m", gpt_neo_x(512, 6, 8)},
      {"pythia-160m", gpt_neo_x(768, 12, 12)},
      {"pythia-410m", gpt_neo_x(1024, 24, 16)},
      {"pythia-1b", gpt_neo_x(2048, 16, 8)},
      {"pythia-1.4b", gpt_neo_x(2048, 24, 16)},
      {"llama-3.2-1b", llama3(2048, 16, 8192, 32.0)},
      {"llama-3.1-8b", llama3_8b()},
      {"qwen2.5-0.5b", qwen25(896, 24, 14, 4864, 32768)},
      {"qwen2.5-1.5b", qwen25(1536, 28, 12, 8960, 131072)},
      {"openseek-small", openseek_small()},
  };
  return all;
}

const Preset* find_preset(std::string_view name) {
  const auto all = presets();
  const auto found = std::ranges::find(all, name, &Preset::name);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace sortie::config
