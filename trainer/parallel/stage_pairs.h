// Which stages of a pipeline send each other what goes from layer to layer.
#pragma once

#include <set>
#include <utility>

namespace sortie::trainer {

/// Neighbours in both directions (from, to), the last and the first stage among them: with
/// interleaved runs and tied embeddings those are neighbours, too. Empty for one stage.
inline std::set<std::pair<int, int>> stage_pairs(int stages) {
  std::set<std::pair<int, int>> pairs;
  for (int stage = 0; stages > 1 && stage < stages; ++stage) {
    const int next = (stage + 1) % stages;
    pairs.insert({stage, next});
    pairs.insert({next, stage});
  }
  return pairs;
}

}  // namespace sortie::trainer
