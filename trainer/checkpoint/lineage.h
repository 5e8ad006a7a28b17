// Lineage: identifies the checkpoints of one run. The first checkpoint of a run starts a lineage,
// and every later one carries it, over all restarts. A run that starts from another run's
// checkpoint starts its own lineage and records where it came from.
#pragma once

#include <string>
#include <string_view>

#include "trainer/checkpoint/manifest.h"

namespace sortie::trainer {

/// run_id of a checkpoint that `sortie-train import` made.
inline constexpr std::string_view kImportRun = "import";

/// Returns a lineage for a run that starts: 16 random hexadecimal digits.
std::string new_lineage();

/// Returns a lineage for a checkpoint that is made from something else (an import, merged weights):
/// the same for the same content, so that making it again gives the same lineage.
std::string lineage_of_content(std::string_view content);

/// Returns the lineage of a checkpoint. Older versions recorded none: for their checkpoints it is
/// the run that wrote the first one.
std::string lineage_of(const Manifest& manifest);

/// Whether both belong to one run. Imported checkpoints belong to none.
bool same_run(const Manifest& a, const Manifest& b);

/// Whether an older version saved `later` and its records do not exclude that it started from the
/// run of `earlier`. False for checkpoints with a lineage, which record what they started from.
bool may_have_started_from(const Manifest& later, const Manifest& earlier);

}  // namespace sortie::trainer
