// Tiny mixture-of-experts jobs, for tests of the training loop.
#pragma once

#include "common/config/architectures.h"
#include "tests/support/tiny_training.h"

namespace sortie::trainer::test {

inline config::JobConfig mixture_job(const std::string& architecture) {
  config::JobConfig job = tiny_job("llama");
  config::ModelConfig& m = job.model;
  m.architecture = architecture;
  m.ffn_hidden_size = 40;
  m.moe.num_experts = 6;
  m.moe.topk = 2;
  if (architecture == "deepseek-v3") {
    m.attention_num_kv_heads = 0;
    m.mla = {.q_lora_rank = 20,
             .kv_lora_rank = 16,
             .qk_nope_head_dim = 8,
             .qk_rope_head_dim = 6,
             .v_head_dim = 10};
    m.moe.ffn_hidden_size = 24;
    m.moe.num_shared_experts = 1;
    m.moe.first_dense_layers = 1;
    m.moe.num_groups = 3;
    m.moe.group_topk = 2;
    m.moe.bias_update_rate = 0.01;
    m.moe.seq_aux_loss_coeff = 0.01;
    m.mtp.num_layers = 1;
  } else {
    m.head_dim = 12;
    m.moe.aux_loss_coeff = 0.01;
    if (architecture == "qwen3-moe") m.moe.normalize_topk = false;
  }
  return job;
}

/// The tiny job of any architecture.
inline config::JobConfig family_job(const std::string& architecture) {
  config::ModelConfig probe;
  probe.architecture = architecture;
  return config::architecture_of(probe).mixture ? mixture_job(architecture)
                                                : tiny_job(architecture);
}

}  // namespace sortie::trainer::test
