// A job as a program of Sortie has written it (to_toml), perhaps in another version.
#pragma once

#include <string_view>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

/// Every value is of the kind and in the range of its key. Keys that this version does not know are
/// passed over, those that are missing have their defaults, and rules over several keys are not
/// checked: they may have come later. So the job is good to be compared with another one, not to be
/// run. ErrorCode::config for text that is no TOML and for values that a key can not have.
Result<JobConfig> parse_saved_job(std::string_view text, std::string_view name);

/// The same for a job whose model is built from it: what is unknown in [model] and [lora], and the
/// rules over their keys, are errors too, since another model would be computed.
Result<JobConfig> parse_saved_model(std::string_view text, std::string_view name);

}  // namespace sortie::config
