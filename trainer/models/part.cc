#include "trainer/models/part.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "common/config/architectures.h"
#include "common/config/stages.h"

namespace sortie::trainer {

ModelPart whole_model(const config::ModelConfig& config) {
  return {.runs = {{0, config.num_layers}}};
}

ModelPart part_of_stage(const config::JobConfig& job, int stage) {
  ModelPart part;
  for (const auto& [begin, end] : config::layers_of_stage(job, stage))
    part.runs.push_back({begin, end});
  part.first = stage == 0;
  part.last = stage + 1 == job.topology.pipeline_parallel_size;
  return part;
}

RunOfParameter::RunOfParameter(const config::JobConfig& job) {
  for (const auto& range : config::layer_runs(job)) ends_.push_back(range.end);
}

std::int64_t RunOfParameter::operator()(const std::string& name) const {
  if (name.starts_with("embedding.") || name.starts_with("positions.")) return 0;
  constexpr std::string_view kLayers = "layers.";
  const auto last = static_cast<std::int64_t>(ends_.size()) - 1;
  if (!name.starts_with(kLayers)) return last;
  std::int64_t layer = 0;
  if (std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer).ec !=
      std::errc())
    return last;
  const auto run = std::ranges::upper_bound(ends_, layer) - ends_.begin();
  return std::min<std::int64_t>(run, last);  // prediction layers are the last run's
}

std::int64_t mixtures_below(const config::ModelConfig& config, std::int64_t layer) {
  std::int64_t count = 0;
  for (std::int64_t one = 0; one < layer; ++one) count += config::is_mixture(config, one) ? 1 : 0;
  return count;
}

}  // namespace sortie::trainer
