// The config that a checkpoint has recorded, which may be older than this program.
#pragma once

#include "common/config/load.h"

namespace sortie::config {

/// load_job_text() for text that to_toml() of this version or an older one has written: keys that
/// have been removed since then, and that say nothing about the model, are passed over.
Result<LoadedJob> load_recorded_job(std::string_view text, std::string_view name);

}  // namespace sortie::config
