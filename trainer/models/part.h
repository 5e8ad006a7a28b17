// The part of a model that one LanguageModel computes: the whole model, or the runs of layers of a
// pipeline stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/schema.h"

namespace sortie::trainer {

/// Layers [begin, end).
struct LayerSpan {
  std::int64_t begin = 0, end = 0;
};

struct ModelPart {
  std::vector<LayerSpan> runs;  // in ascending order
  bool first = true;            // the first run begins with the embedding
  bool last = true;             // the last run ends with the final norm, the head and the loss
  bool whole() const { return first && last && runs.size() == 1; }
};

ModelPart whole_model(const config::ModelConfig& config);
/// The part of stage `stage` of topology.pipeline_parallel_size stages.
ModelPart part_of_stage(const config::JobConfig& job, int stage);

/// Facts about the whole model that a stage needs in training.
struct StageFacts {
  /// The first run, counted over all stages, that has trained parameters.
  std::int64_t first_trained_run = 0;
  /// The number of experts of each mixture if a loss balances their load over all layers, which
  /// needs sums over the stages; 0 = there is one stage, or no such loss.
  std::int64_t balanced_experts = 0;
  std::vector<std::int64_t> mixtures_before;  // by run of this stage: in the layers below it
  std::int64_t mixtures = 0;                  // of the whole model
};

/// Finds the run, counted over all stages, that a parameter belongs to, by its name: that of its
/// layer, the first run for embedding and positions, the last run for everything else.
class RunOfParameter {
 public:
  explicit RunOfParameter(const config::JobConfig& job);
  std::int64_t operator()(const std::string& name) const;

 private:
  std::vector<std::int64_t> ends_;  // by run: the layer after it
};

/// Returns the number of mixtures of experts in the layers below `layer`.
std::int64_t mixtures_below(const config::ModelConfig& config, std::int64_t layer);

}  // namespace sortie::trainer
