// RoPE frequencies of a model, scaled for longer sequences as model.rope_scaling says.
#pragma once

#include <vector>

#include "common/config/schema.h"

namespace sortie::trainer {

/// Returns one frequency per pair of the first `rotary_dims` dimensions of a head.
///   linear: f / factor (Chen et al. 2023)
///   llama3: with r = f * original / (2 pi) turns within the original length (Dubey et al. 2024),
///           f / factor where r < low, f where r > high, between them a blend that is linear in r
///   yarn:   see ops::yarn_frequencies; beta_slow and beta_fast are low and high
std::vector<double> model_rope_frequencies(const config::ModelConfig& config,
                                           std::int64_t rotary_dims);

/// Returns the factor of cos and sin: 1 except for yarn (Peng et al. 2023).
double rope_table_factor(const config::ModelConfig& config);
/// Returns yarn's temperature for rope_scaling_mscale_all_dim; 1 without yarn or if that is 0.
double rope_temperature(const config::ModelConfig& config);

}  // namespace sortie::trainer
