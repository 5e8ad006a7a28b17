// Reads a job that a program of Sortie wrote (to_toml), possibly in another version.
#pragma once

#include <string_view>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

/// Every value must have the kind and range of its key. Unknown keys are ignored, missing ones have
/// their defaults, and rules that involve several keys are not checked: they may be newer. So the
/// job is good for comparison with another one, not for a run. Fails with ErrorCode::config if the
/// text is no TOML or a value is not allowed.
Result<JobConfig> parse_saved_job(std::string_view text, std::string_view name);

/// The same for a job from which the model is built. Unknown keys in [model] and [lora] and broken
/// rules about these sections are errors too, because otherwise a different model would be
/// computed.
Result<JobConfig> parse_saved_model(std::string_view text, std::string_view name);

}  // namespace sortie::config
