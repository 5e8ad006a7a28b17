// Lineage: which checkpoints are of one run. The first checkpoint of a run starts a lineage and
// every later one carries it, over all restarts; a run that starts from another run's checkpoint
// starts a lineage of its own and records where it came from.
#pragma once

#include <string>
#include <string_view>

#include "trainer/checkpoint/manifest.h"

namespace sortie::trainer {

/// run_id of a checkpoint that `sortie-train import` made.
inline constexpr std::string_view kImportRun = "import";

/// For a run that starts: 16 hexadecimal digits at random.
std::string new_lineage();

/// For a checkpoint that was made of something else (an import, merged weights): the same for the
/// same content, so that making it again does not make it another one.
std::string lineage_of_content(std::string_view content);

/// That of a checkpoint. Older versions recorded none: of their checkpoints it is the run that
/// wrote the first one.
std::string lineage_of(const Manifest& manifest);

/// Both are of one run. What was imported is of none.
bool same_run(const Manifest& a, const Manifest& b);

/// An older version saved `later` and may have started from the run of `earlier`: what it recorded
/// does not say otherwise. False for checkpoints with a lineage: those say what they started from.
bool may_have_started_from(const Manifest& later, const Manifest& earlier);

}  // namespace sortie::trainer
