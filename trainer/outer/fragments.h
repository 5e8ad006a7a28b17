// Fragments: parts of the model that are exchanged one after the other, each at its own inner step
// of a round (Streaming DiLoCo, Douillard et al. 2025).
#pragma once

#include <cstdint>
#include <vector>

#include "common/config/outer.h"
#include "trainer/outer/outer_state.h"
#include "trainer/outer/part_map.h"

namespace sortie::trainer::outer {

/// The ranges of a part's vector that each fragment has, by fragment, ascending. Layer i of the
/// model is in fragment i modulo `count`: strided, so that each has layers of all depths. What
/// belongs to no layer (embeddings, the last norm, the output layer) goes to the fragments that
/// have the least, cut where it is more than they lack: the time of an exchange is that of the
/// largest. A fragment of a part may be empty.
std::vector<std::vector<PartRange>> cut_into_fragments(const std::vector<PartPiece>& pieces,
                                                       std::int64_t count);

/// Number of the layer that a parameter belongs to, by its name ("layers.3.attention..."); -1:
/// none.
std::int64_t layer_of_name(std::string_view name);

/// When fragments of a round of `steps` steps are exchanged, in steps from its begin. Fragment p of
/// P is complete after (p + 1) (steps - overlap) / P steps, rounded up, and is applied `overlap`
/// steps later: nothing is under way at the end of a round.
struct FragmentTimes {
  std::int64_t steps = 1, fragments = 1, overlap = 0;
  FragmentTimes(const config::OuterSettings& settings, std::int64_t steps);
  std::int64_t ready(std::int64_t fragment) const;
  std::int64_t applied(std::int64_t fragment) const { return ready(fragment) + overlap; }
};

}  // namespace sortie::trainer::outer
