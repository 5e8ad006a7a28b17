// Which layers the stages of a pipeline have.
#pragma once

#include <cstdint>
#include <vector>

#include "common/config/schema.h"

namespace sortie::config {

/// Layers [begin, end).
struct LayerRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const LayerRange&) const = default;
};

/// What the parts of a model weigh when stages are balanced: multiply-adds of a token, forward, and
/// an eighth of the parameters, which take memory and an update whether or not a token meets them
/// (experts, the rows of an embedding).
struct ModelWeights {
  std::vector<double> layers;
  double embedding = 0.0;  // and a table of positions
  double head = 0.0;       // with the layers of multi-token prediction
};
ModelWeights weigh(const ModelConfig& model);

/// Cuts the layers, in order, into `runs` parts of a layer at least, so that the heaviest is as
/// light as can be; the first has the embedding, the last the head. Parts are otherwise as even as
/// that leaves them. There are as many layers as runs (rule G3; checked).
std::vector<LayerRange> cut_layers(const ModelWeights& weights, std::int64_t runs);

/// All runs that [topology] asks for: as pipeline_stage_layers says, else balanced.
std::vector<LayerRange> layer_runs(const JobConfig& job);
/// The runs of one stage, upwards, of all that [topology] asks for.
std::vector<LayerRange> layers_of_stage(const JobConfig& job, std::int64_t stage);

}  // namespace sortie::config
