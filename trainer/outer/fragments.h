// Fragments: parts of the model that are exchanged one after another, each at a different inner
// step of a round (Streaming DiLoCo, Douillard et al. 2025).
#pragma once

#include <cstdint>
#include <vector>

#include "common/config/outer.h"
#include "trainer/outer/outer_state.h"
#include "trainer/outer/part_map.h"

namespace sortie::trainer::outer {

/// Returns the ranges of a part's vector that belong to each fragment, in ascending order. Layer i
/// of the model is in fragment i modulo `count`, so that each fragment has layers of all depths.
/// Parameters outside of layers (embeddings, the last norm, the output layer) go to the smallest
/// fragments and are split where they exceed the average size, because the largest fragment
/// determines the time of an exchange. A fragment of a part may be empty.
std::vector<std::vector<PartRange>> cut_into_fragments(const std::vector<PartPiece>& pieces,
                                                       std::int64_t count);

/// Index of the layer that a parameter belongs to, from its name ("layers.3.attention..."); -1:
/// none.
std::int64_t layer_of_name(std::string_view name);

/// When the fragments of a round of `steps` steps are exchanged, in steps since its start. Fragment
/// p of P is ready after (p + 1) (steps - overlap) / P steps, rounded up, and is applied `overlap`
/// steps later, so that no exchange is in flight at the end of a round.
struct FragmentTimes {
  std::int64_t steps = 1, fragments = 1, overlap = 0;
  FragmentTimes(const config::OuterSettings& settings, std::int64_t steps);
  std::int64_t ready(std::int64_t fragment) const;
  std::int64_t applied(std::int64_t fragment) const { return ready(fragment) + overlap; }
};

}  // namespace sortie::trainer::outer
