// Assigns layers to pipeline stages.
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

/// Weights of the parts of a model for balancing stages: the forward multiply-adds of a token plus
/// an eighth of the number of parameters. Parameters need memory and an update even if a token does
/// not use them (experts, the rows of an embedding).
struct ModelWeights {
  std::vector<double> layers;
  double embedding = 0.0;  // includes learned position embeddings
  double head = 0.0;       // includes the layers of multi-token prediction
};
ModelWeights weigh(const ModelConfig& model);

/// Cuts the layers, in order, into `runs` non-empty parts so that the heaviest part is as light as
/// possible. The first part includes the embedding, the last one the head. Under that bound, each
/// part is as close as possible to an equal share of the remaining weight. There must be at least
/// as many layers as runs (rule G3; checked).
std::vector<LayerRange> cut_layers(const ModelWeights& weights, std::int64_t runs);

/// All runs of layers according to [topology]: pipeline_stage_layers if set, else balanced.
std::vector<LayerRange> layer_runs(const JobConfig& job);
/// The runs of one stage, in ascending order.
std::vector<LayerRange> layers_of_stage(const JobConfig& job, std::int64_t stage);

}  // namespace sortie::config
