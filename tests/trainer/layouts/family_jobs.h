// Jobs of tiny models of every family, for ranks that share layers or sequences.
#pragma once

#include <string>

#include "common/config/architectures.h"
#include "tests/support/tiny_mixture.h"

namespace sortie::trainer::test {

inline config::JobConfig family_job(const std::string& architecture, std::int64_t tokens) {
  config::ModelConfig model;
  model.architecture = architecture;
  const config::Architecture& traits = config::architecture_of(model);
  config::JobConfig job = traits.mixture ? mixture_job(architecture) : tiny_job("llama");
  job.model.architecture = architecture;
  if (!traits.grouped) job.model.attention_num_kv_heads = 0;
  if (traits.partial_rope && !traits.gated_mlp) job.model.rotary_percentage = 0.5;
  job.model.sequence_length = tokens;
  job.topology.global_batch_size = 4;
  job.optimizer.eps = 1e-4;  // keeps small moments from amplifying rounding differences
  return job;
}

/// Returns `job` with everything that depends on the position of a token or on the number of a
/// head: windows, dropout and documents.
inline config::JobConfig placed(config::JobConfig job, std::int64_t window) {
  config::ModelConfig& model = job.model;
  const config::Architecture& traits = config::architecture_of(model);
  if (traits.windows) {
    model.attention_layers = {"local", "global"};
    model.attention_window = window;
  }
  model.embedding_dropout = traits.latent ? 0.0 : 0.1;
  model.attention_dropout = 0.2;
  model.residual_dropout = traits.latent ? 0.0 : 0.1;
  model.document_end_token = 7;
  model.reset_positions = true;
  return job;
}

}  // namespace sortie::trainer::test
