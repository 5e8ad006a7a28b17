// RoPE frequencies of a model, stretched as model.rope_scaling says.
#pragma once

#include <vector>

#include "common/config/schema.h"

namespace sortie::trainer {

/// One per pair of the first `rotary_dims` dimensions of a head.
///   linear: f / factor (Chen et al. 2023)
///   llama3: with r = f * original / (2 pi) turns within the original length (Dubey et al. 2024),
///           f / factor where r < low, f where r > high, between them a blend that is linear in r
std::vector<double> model_rope_frequencies(const config::ModelConfig& config,
                                           std::int64_t rotary_dims);

}  // namespace sortie::trainer
