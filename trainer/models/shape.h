// The shape of a model: [model] with every derived size filled in.
#pragma once

#include <cstdint>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/tensor/device.h"

namespace sortie::trainer {

struct ModelShape {
  std::int64_t vocab_size;         // tokens that exist
  std::int64_t padded_vocab_size;  // rows of the embedding and the head: a multiple of 64
  std::int64_t hidden, layers, heads, kv_heads, head_dim, ffn, sequence_length;
  std::int64_t value_dim;      // width of a value head
  std::int64_t rotary_dims;    // dimensions of a head that RoPE rotates, 0 without RoPE
  std::int64_t num_positions;  // longest sequence that the model is made for
  bool tied;
};
ModelShape resolve_shape(const config::ModelConfig& config);

/// ErrorCode::unsupported if the heads are too wide or the experts too many for the device.
Result<> check_device_limits(const config::ModelConfig& config, const Device& device);

/// Inner width of an expert.
std::int64_t expert_ffn(const config::ModelConfig& config, const ModelShape& shape);

}  // namespace sortie::trainer
