// The job of the 124M GPT for the benchmarks of its step and its checkpoints.
#pragma once

#include "common/config/schema.h"
#include "tests/bench/step_floor_cpu.h"

namespace sortie::bench {

inline config::JobConfig gpt_job(const GptShape& shape) {
  config::JobConfig job;
  job.model.architecture = "gpt-neo-x";
  job.model.vocab_size = shape.vocab;
  job.model.hidden_size = shape.hidden;
  job.model.num_layers = shape.layers;
  job.model.num_attention_heads = shape.heads;
  job.model.ffn_hidden_size = shape.ffn;
  job.model.sequence_length = shape.tokens;
  job.model.weight_tying = true;
  job.topology.micro_batch_size = shape.batch;
  job.learning_rate_scheduler.learning_rate = 1e-4;
  return job;
}

}  // namespace sortie::bench
