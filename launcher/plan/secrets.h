// The values of a job's secrets. From here they are in memory and in frames, and nowhere else.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Adds the variables of runner.secrets_file to runner.secret_env, and gives every variable whose
/// value is config::kSecretShown its value from there or from `environment`. Errors: a file that
/// others can read, a line of another form, a variable given twice or nowhere; none of them repeats
/// a value.
Result<> fill_in_secrets(config::RunnerConfig& runner, const Environment& environment);

/// What others can read is no secret, as with ssh's keys. `key` names the file in messages.
Result<> check_private(std::string_view key, const std::string& path);

}  // namespace sortie::launcher
