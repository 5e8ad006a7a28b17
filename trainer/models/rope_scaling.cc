#include "trainer/models/rope_scaling.h"

#include <numbers>

#include "trainer/ops/attention.h"
#include "trainer/ops/latent.h"

namespace sortie::trainer {

std::vector<double> model_rope_frequencies(const config::ModelConfig& config,
                                           std::int64_t rotary_dims) {
  std::vector<double> frequencies =
      ops::rope_frequencies(rotary_dims, config.rotary_embedding_base);
  const double factor = config.rope_scaling_factor;
  const auto original = static_cast<double>(config.rope_scaling_original_length);
  const double low = config.rope_scaling_low_frequency, high = config.rope_scaling_high_frequency;
  if (config.rope_scaling == "yarn")
    return ops::yarn_frequencies(rotary_dims, config.rotary_embedding_base,
                                 {factor, original, high, low});
  for (double& f : frequencies) {
    if (config.rope_scaling == "linear") f /= factor;
    if (config.rope_scaling != "llama3") continue;
    const double turns = f * original / (2.0 * std::numbers::pi);
    if (turns < low) {
      f /= factor;
    } else if (turns <= high) {
      const double share = (turns - low) / (high - low);
      f = (1.0 - share) * f / factor + share * f;
    }
  }
  return frequencies;
}

double rope_table_factor(const config::ModelConfig& config) {
  if (config.rope_scaling != "yarn") return 1.0;
  const double factor = config.rope_scaling_factor, mscale = config.rope_scaling_mscale;
  if (mscale == 0.0 || config.rope_scaling_mscale_all_dim == 0.0)
    return ops::yarn_mscale(factor, 1.0);
  return ops::yarn_mscale(factor, mscale) / rope_temperature(config);
}

double rope_temperature(const config::ModelConfig& config) {
  if (config.rope_scaling != "yarn" || config.rope_scaling_mscale_all_dim == 0.0) return 1.0;
  return ops::yarn_mscale(config.rope_scaling_factor, config.rope_scaling_mscale_all_dim);
}

}  // namespace sortie::trainer
