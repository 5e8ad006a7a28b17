#include "trainer/models/rope_scaling.h"

#include <numbers>

#include "trainer/ops/attention.h"

namespace sortie::trainer {

std::vector<double> model_rope_frequencies(const config::ModelConfig& config,
                                           std::int64_t rotary_dims) {
  std::vector<double> frequencies =
      ops::rope_frequencies(rotary_dims, config.rotary_embedding_base);
  const double factor = config.rope_scaling_factor;
  const auto original = static_cast<double>(config.rope_scaling_original_length);
  const double low = config.rope_scaling_low_frequency, high = config.rope_scaling_high_frequency;
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

}  // namespace sortie::trainer
