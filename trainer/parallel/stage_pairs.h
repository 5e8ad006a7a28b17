// Which stages of a pipeline exchange messages between layers.
#pragma once

#include <set>
#include <utility>

namespace sortie::trainer {

/// Pairs (from, to) of neighbouring stages, in both directions. The last and the first stage are
/// neighbours too, for interleaved runs and tied embeddings. Empty for one stage.
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
