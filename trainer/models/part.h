// What of a model one object computes: the whole of it, or the runs of layers of a pipeline's
// stage.
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
  std::vector<LayerSpan> runs;  // upwards
  bool first = true;            // the first run begins with the embedding
  bool last = true;             // the last run ends with the final norm, the head and the loss
  bool whole() const { return first && last && runs.size() == 1; }
};

ModelPart whole_model(const config::ModelConfig& config);
/// Stage `stage` of topology.pipeline_parallel_size.
ModelPart part_of_stage(const config::JobConfig& job, int stage);

/// What a stage has to know of the whole model in training.
struct StageFacts {
  /// The first of all runs that has something to train.
  std::int64_t first_trained_run = 0;
  /// Experts of the mixtures whose load is balanced over all layers, which takes sums over the
  /// stages; 0 = there is one stage, or no such loss.
  std::int64_t balanced_experts = 0;
  std::vector<std::int64_t> mixtures_before;  // in the layers below each run of this stage
  std::int64_t mixtures = 0;                  // of the whole model
};

/// Which run of all stages a parameter belongs to, by its name: that of its layer, the first for
/// embedding and positions, the last for all else.
class RunOfParameter {
 public:
  explicit RunOfParameter(const config::JobConfig& job);
  std::int64_t operator()(const std::string& name) const;

 private:
  std::vector<std::int64_t> ends_;  // of each run, the layer behind it
};

/// Mixtures of experts in layers below `layer`.
std::int64_t mixtures_below(const config::ModelConfig& config, std::int64_t layer);

}  // namespace sortie::trainer
